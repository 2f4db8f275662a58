r"""The forms of e-mail addresses, phone numbers, keys, IP addresses and card numbers, as patterns and checks.

`FORMS` are tried in order; each is a pattern, the group to be taken out, its kind, and a check where a pattern alone
would take ordinary text. No pattern takes more than linear time: each repetition is bounded or possessive, and a search
begins once for a run of characters (look-behinds) or at a literal.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

DASHES = "\\-\u2010-\u2015\u2212"
SPACES = " \u00a0\u2007\u2009\u202f"

SECRET_NAME = (
    r"(?:api|access|account|private|secret|signing|encryption|master|storage|shared|primary|subscription)[_\- ]?key"
    r"|secret|token|passwd|password|passphrase|pwd|authorization|credential"
)
_NO_SECRET = (  # numbers with their separators and units, the scheme before a key, code, and words of schemas
    r"[\d.,_]+[a-zA-Z%]{0,3}(?![\w.])|bearer\b|basic\b|[A-Za-z_][\w.]{0,80}[\[(]"
    r"|(?:string|number|integer|boolean|object|optional|required|undefined|unlimited|unknown|invalid|expired|missing)\b"
)


@dataclass(frozen=True)
class Form:
    """`group` of what `pattern` finds is taken out as `kind`, where `is_one` says so."""

    kind: str
    pattern: re.Pattern[str]
    group: int = 0
    is_one: Callable[[str], bool] = lambda text: True


def _is_aws_secret(text: str) -> bool:
    """Random letters of both cases and digits: a path or a name in camel case changes its kind of letter less often, a
    hash in hexadecimal has one case only."""
    kinds = ["u" if c.isupper() else "l" if c.islower() else "d" if c.isdigit() else "/" for c in text]
    num_changes = sum(a != b for a, b in pairwise(kinds))
    return num_changes >= 14 and min(kinds.count("u"), kinds.count("l")) >= 5 and "d" in kinds


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    """`a::b` is an address too, but then every qualified name of C++ would be."""
    return text.count(":") >= 2 and any(character.isdigit() for character in text) and _is_ip(text)


_GROUP = re.compile(r"\d+")
_DATE = re.compile(r"\d{1,2}([./\-])\d{1,2}\1\d{2,4}(?![\d./\-])|\d{4}([./\-])\d{1,2}\2\d{1,2}(?!\d)")


def _is_phone(text: str) -> bool:
    """A date with a time, the list of all digits, a number in base two, and pairs of digits (but for France's five) are
    none."""
    digits = [c for c in text if c.isdigit()]
    groups = _GROUP.findall(text)
    if all(len(group) == 2 for group in groups) and len(groups) != 5:
        return text.startswith("+")
    return not _DATE.match(text) and len(set(digits)) > 2 and "".join(digits) not in ("0123456789", "1234567890")


_KEYS = r"""(?x)
    (?<![\w-])eyJ[\w-]{8,}+\.eyJ[\w-]{8,}+\.[\w-]*+             # JSON web token
    | (?<![\w-])(?:sk|pk|rk)[-_](?:[A-Za-z0-9]{1,40}[-_]){0,6}[A-Za-z0-9]{16,}+[\w-]*+   # OpenAI, Anthropic, Stripe
    | (?<![\w-])(?:
        gh[oprsu]_[A-Za-z0-9]{20,}+ | github_pat_\w{20,}+ | gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat)-[\w-]{16,}+
        | xox[a-z](?:\.xox[a-z])?-[\w-]{10,}+ | xapp-\d-[\w-]{10,}+ | hf_[A-Za-z0-9]{20,}+ | npm_[A-Za-z0-9]{30,}+
        | pypi-[\w-]{30,}+ | whsec_[\w+/=-]{16,}+ | (?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b
        | AIza[\w-]{30,}+ | ya29\.[\w-]{20,}+ | 1//0[\w-]{20,}+ | GOCSPX-[\w-]{20,}+
        | SG\.[\w-]{16,}+\.[\w-]{16,}+ | key-[0-9a-f]{32}\b | (?:SK|AC)[0-9a-f]{32}\b | shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b
        | sq0[a-z]{3}-[\w-]{22,}+ | do[opr]_v1_[0-9a-f]{64}\b | dapi[0-9a-f]{32}\b | dp\.[a-z]{2,5}\.\w{40,}+
        | hv[bsr]\.[\w-]{24,}+ | ATATT3[\w=-]{20,}+ | lin_api_\w{30,}+ | ntn_\w{30,}+ | figd_[\w-]{30,}+
        | PMAK-[\w-]{50,}+ | gls?[ac]_\w{30,}+ | NRAK-[A-Z0-9]{27}\b | gsk_\w{30,}+ | r8_\w{30,}+ | pplx-\w{30,}+
        | xai-\w{30,}+ | nvapi-[\w-]{30,}+ | sntr[yu][su]?_[\w+/=-]{30,}+ | sbp_[0-9a-f]{40}\b
        | pscale_[a-z]{2,8}_[\w.-]{20,}+ | tskey-[\w-]{20,}+ | fm[12]_[\w+/=-]{30,}+ | dckr_(?:pat|oat)_[\w-]{20,}+
        | AGE-SECRET-KEY-1[A-Z0-9]{50,}+ | \d{8,10}:AA[\w-]{32,34}\b
        | [MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}(?![\w-])       # Discord
        | eyJ[\w-]{100,}+                                          # a token's object alone
      )
"""
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?>(?:(?!-----(?:BEGIN|END) )[\s\S]){0,20000}+-----END [A-Z0-9 ]{0,60}-----|[^-]{0,20000}+)"
    r"|(?<=Private-Lines: )\d{1,3}\s{1,2}(?:[A-Za-z0-9+/=]{1,100}+\s{1,2}){1,200}+"  # PuTTY
)
_WEBHOOKS = (
    r"(?i)(?<=://)(?:hooks\.slack(?:-gov)?\.com/[a-z]{1,20}|(?:[a-z]{1,10}\.)?discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks"
    r"|[\w-]{1,63}\.webhook\.office\.com/webhook\w{0,3}|outlook\.office(?:365)?\.com/webhook|api\.telegram\.org/bot\d{5,12}"
    r"|hooks\.zapier\.com/hooks/catch|maker\.ifttt\.com/trigger/[\w-]{1,60}/with/key|chat\.googleapis\.com/v1/spaces"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v\d/hook|events\.pagerduty\.com/integration"
    r"|(?:hook|hooks|webhook|webhooks)\.[\w.-]{1,100}|[\w.-]{1,100}/(?:api/)?(?:incoming-?)?(?:web)?hooks?)"
    r"[/:]([\w\-/:%?=&.+~@]{16,}+)"
)
_DOT = rf"(?:\.|%2e|[{SPACES}]?[\[({{][ ]?dot[ ]?[\])}}][{SPACES}]?)"
_EMAIL = (
    rf"(?i)(?<![\w.+%\-])[\w.+%\-]{{1,64}}?(?:@|%40|&\#64;|&commat;|\\u0040|[{SPACES}]?[\[({{][ ]?at[ ]?[\])}}][{SPACES}]?)"
    rf"(?:[\w-]{{1,63}}{_DOT}){{1,8}}[^\W\d_]{{2,24}}(?![\w-])"
)
_GAP = rf"[{SPACES}.{DASHES}/]"
_GAPS = rf"[{SPACES}().{DASHES}/]"
_PHONE = rf"""(?x)
    (?<![\w+])(?:\+|%2B)\d{{1,3}}{_GAPS}{{0,3}}\d(?:{_GAPS}{{0,2}}\d){{5,13}}(?!\w)  # +49 (0)30 123 456
    | (?<!\w)\(\d{{2,5}}\){_GAP}?\d(?:{_GAP}?\d){{4,9}}(?!\w)                          # (030) 123456
    | (?<![\w.{DASHES}])(?:1{_GAP})?[2-9]\d\d{_GAP}\d{{3}}{_GAP}\d{{4}}(?!\w|[.{DASHES}]\d)  # 1-800-555-1234
    | (?<![\w.,:{DASHES}])(?:00?[1-9]|0\(\d{{2,4}}\))(?:{_GAP}?\d){{7,12}}(?!\w|[.,:{DASHES}]\d)  # 0301234567
    | (?<![\w.{DASHES}])1[3-9]\d[{SPACES}{DASHES}]\d{{4}}[{SPACES}{DASHES}]\d{{4}}(?!\w|[.{DASHES}]\d)     # 138 0013 8000
    | (?<![\w.{DASHES}])[6-9]\d{{4}}[{SPACES}{DASHES}]\d{{5}}(?!\w|[.{DASHES}]\d)          # 98765 43210
"""
_CALLED_PHONE = (
    rf"(?i)\b(?:phone|telephone|tel|fax|mobile|whatsapp|telefon|tél|handy|móvil)(?:[ _-]?(?:no|nr|number))?"
    rf"[\"']?[.:=]{{0,2}}\s{{0,3}}[\"']?(\d(?:{_GAPS}{{0,2}}\d){{6,13}})(?![\w]|[.{DASHES}]\d)"
)

FORMS = (
    Form("key", re.compile(_PRIVATE_KEY)),
    Form("key", re.compile(_WEBHOOKS), 1),
    Form("key", re.compile(_KEYS)),
    Form("key", re.compile(r"(?i)\b(?:bearer|basic)\s{1,5}([\w.~+/=-]{12,}+)"), 1),
    Form(
        "key",
        re.compile(
            rf"""(?i)(?:{SECRET_NAME})[\w-]{{0,20}}(?:\\?["'])?\s{{0,5}}[:=]\s{{0,5}}(?:\\?["'])?"""
            rf"""((?!{_NO_SECRET})[^\s"',;}}\\&]{{6,}}+)"""
        ),
        1,
        lambda text: not text.startswith("["),
    ),
    Form(
        "key",
        re.compile(
            r"(?<=[?&])(?:sig|signature|key|auth|code|X-Amz-Signature|X-Goog-Signature)=([\w%+/=.~-]{16,}+)", re.I
        ),
        1,
    ),
    Form("key", re.compile(r"://([^\s/:@\[]{0,200}:[^\s/@]{1,200})(?=@)"), 1),
    Form("key", re.compile(r"://([0-9A-Za-z_-]{16,200})(?=@)"), 1),
    Form("key", re.compile(r"(?<![\w/+=-])[A-Za-z0-9/+]{40}(?![\w/+=-])"), 0, _is_aws_secret),
    Form("key", re.compile(r"(?<![\w/+=-])[A-Za-z0-9/+]{86}==(?![\w/+=-])")),  # Azure
    Form("email", re.compile(_EMAIL)),
    Form("ip", re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)"), 0, _is_ip),
    Form("ip", re.compile(r"(?<![\w:])[0-9A-Fa-f:]{2,39}(?:\.\d{1,3}){0,4}(?![\w:])"), 0, _is_ipv6),
)
PHONES = (Form("phone", re.compile(_PHONE), 0, _is_phone), Form("phone", re.compile(_CALLED_PHONE), 1, _is_phone))

# ---- card numbers: digits with anything between them, told by their issuer and check digit

DIGITS = re.compile(rf"(?<![\w])\d(?:[{SPACES}.{DASHES}_/\u00b7]?\d){{12,}}+(?!\w)")
_ISSUERS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11}|(?:6011|64[4-9]\d|65\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}"
    r"|(?:50|5[6-9]|6[0-9])\d{10,17}|220[0-4]\d{12,15}"
)


def card_spans(run: str) -> list[tuple[int, int]]:
    """Where card numbers stand in a run of digits with separators: beside other numbers, such as an expiry date.

    A number is written without a break, in groups that begin with one of four (4-4-4-4, 4-6-5), or digit by digit.
    """
    groups = [match.span() for match in _GROUP.finditer(run)]
    digits = [int(character) for character in run if character.isdigit()]
    begins = [0, *accumulate(stop - start for start, stop in groups)]  # of the groups, among the digits
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits]
    odd, even = digits[:], digits[:]
    odd[::2], even[1::2] = doubled[::2], doubled[1::2]
    sums = [0, *accumulate(odd)], [0, *accumulate(even)]  # of check digits, for a number whose end is odd or even

    def is_card(begin: int, end: int) -> bool:
        sum_to = sums[end % 2]
        if (sum_to[end] - sum_to[begin]) % 10:
            return False
        number = "".join(map(str, digits[begin:end]))
        return len(set(number)) > 1 and _ISSUERS.fullmatch(number) is not None

    spans: list[tuple[int, int]] = []
    first = 0
    while first < len(groups):
        begin, width = begins[first], begins[first + 1] - begins[first]
        last = None
        if 2 <= digits[begin] <= 6 and (width >= 4 or width == 1):
            for number in range(first + (14 if width == 1 else 0), min(first + (16 if width == 1 else 6), len(groups))):
                end = begins[number + 1]
                is_even = width > 1 or end - begin == number + 1 - first  # no group of several among single digits
                if 13 <= end - begin <= 19 and is_even and is_card(begin, end):
                    last = number
        if last is not None:
            spans.append((groups[first][0], groups[last][1]))
        first = first + 1 if last is None else last + 1
    return spans
