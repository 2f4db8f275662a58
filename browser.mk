# `make test-app`: every page without a browser. `make test-browser`: the app in a real Chromium, on a real small run.
#
# Chromium comes from the system (as root it is installed with apt-get), playwright only drives it; axe-core from npm
# judges accessibility. Screenshots of every page lie in build/screenshots afterwards.

AXE_CORE := axe-core@4.14.1
PLAYWRIGHT := playwright==1.65.2
HAS_CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome

.PHONY: test-app test-browser
test-app: $(VENV)/.dev  ## the app's pages, without a browser
	$(BIN)/python -m pytest -q tests/app

test-browser: $(VENV)/.browser  ## the app in Chromium: the journey, every page light, dark and narrow, accessibility
	$(BIN)/python -m pytest -q tests/browser

$(VENV)/.browser: browser.mk $(VENV)/.dev
	@($(HAS_CHROMIUM)) >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy --no-install-recommends chromium fonts-dejavu; } \
	  || { echo 'The browser tests need Chromium. As root: apt-get install chromium' >&2; exit 1; }
	$(PIP_INSTALL) '$(PLAYWRIGHT)'
	npm install --silent --no-audit --no-fund --prefix $(VENV)/node $(AXE_CORE)
	touch $@
