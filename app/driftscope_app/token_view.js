// Shows one page of a conversation; a click or Enter on a round tells Python its index. Arrow keys move between rounds.
// All text goes in through textContent: nothing of a prompt is ever markup.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".text");
  root.replaceChildren();
  const rounds = [];
  let group = null;
  let groupRound = null;

  const addToken = (parent, i) => {
    const token = document.createElement("span");
    token.className = "token " + data.kinds[i] + (data.found.includes(i) ? " found" : "");
    const parts = data.pieces[i].split("\n");
    parts.forEach((part, n) => {
      if (n > 0) {
        const mark = document.createElement("span");
        mark.className = "newline";
        mark.setAttribute("aria-hidden", "true");
        mark.textContent = "⏎";
        token.append(mark, "\n");
      }
      token.append(part);
    });
    parent.append(token);
  };

  const choose = (round) => setTriggerValue("round", round);
  const focusOn = (position) => {
    if (position < 0 || position >= rounds.length) return;
    rounds.forEach((r) => (r.tabIndex = -1));
    rounds[position].tabIndex = 0;
    rounds[position].focus();
  };

  for (let i = 0; i < data.pieces.length; i++) {
    const round = data.rounds[i];
    if (round < 0) {
      groupRound = null;
      addToken(root, i);
      continue;
    }
    if (round !== groupRound) {
      group = document.createElement("span");
      groupRound = round;
      group.className = "round" + (round === data.chosen ? " chosen" : "");
      group.setAttribute("role", "button");
      group.setAttribute("aria-pressed", String(round === data.chosen));
      group.title = data.titles[round];
      const position = rounds.length;
      group.tabIndex = round === data.chosen || position === 0 ? 0 : -1;
      group.addEventListener("click", () => choose(round));
      group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") choose(round);
        else if (event.key === "ArrowRight" || event.key === "ArrowDown") focusOn(position + 1);
        else if (event.key === "ArrowLeft" || event.key === "ArrowUp") focusOn(position - 1);
        else return;
        event.preventDefault();
      });
      rounds.push(group);
      root.append(group);
    }
    addToken(group, i);
  }
  const chosen = rounds.find((r) => r.classList.contains("chosen"));
  if (chosen && data.scroll) chosen.scrollIntoView({ block: "nearest" });
}
