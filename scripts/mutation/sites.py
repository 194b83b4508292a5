"""Where a source can be changed, and the source with every change in it, each behind a number.

A mutant is one change. `rewrite` returns the source with all of its mutants: each asks `berth_mutation::on(number)` at
run time whether it is the one that is switched on. Lines stay where they are, so that a message of the compiler names
the line of the original.
"""
import re

from .source import OPENING

COMPARISON, BOOLEAN, OFF_BY_ONE, CALL, LOCK, ORDER, IGNORED = (
    "comparison", "boolean", "off by one", "dropped call", "dropped lock", "swapped order", "ignored error")
OPERATORS = (COMPARISON, BOOLEAN, OFF_BY_ONE, CALL, LOCK, ORDER, IGNORED)

OPPOSITE = {"<": ("<=", "lt"), "<=": ("<", "le"), ">": (">=", "gt"), ">=": (">", "ge"), "==": ("!=", "eq"), "!=": ("==", "ne")}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
# Where an operand of a comparison, of && and of || ends.
ENDS = {",", ";", "?", ":", "||"} | ASSIGN
STOPS = {"||": ENDS, "&&": ENDS | {"&&"}, "compare": ENDS | {"&&", "&", "|", "^"} | set(OPPOSITE)}
WORDS = {"return", "co_return", "throw", "case", "else", "do", "co_yield", "goto"}
LOCKS = {"MutexLock", "ScopedLock", "SharedLock", "Lock"}
FENCES = re.compile(r"(fence|barrier)$")
NO_CALLS = {"assert", "static_assert", "BERTH_TRY_ASSIGN", "return", "throw", "delete", "using", "static", "const", "constexpr",
            "struct", "class", "typedef", "co_return", "goto", "auto", "break", "continue"}


class Mutant:
    """One change of text[start:end]. `parts` is the new text: strings, and pairs of offsets whose text is kept."""

    def __init__(self, source, operator, start, end, at, before, after, make):
        self.path, self.operator, self.start, self.end = source.path, operator, start, end
        self.line = source.line(at)
        self.last_line = source.line(end - 1)
        self.before, self.after, self.make = squeeze(before), squeeze(after), make
        self.number = None
        self.children = []

    @property
    def change(self):
        return f"{self.before} -> {self.after}"


def squeeze(text):
    return re.sub(r"\s+", " ", text).strip()


def find(source):
    """The mutants of a source, outermost first, without those that overlap another."""
    found = []
    constant = {i for first, last in source.constants for i in range(first, last)}
    for first, last in source.bodies:
        for i in range(first, last):
            token = source.tokens[i]
            if i in constant:
                continue
            if token.kind == "sign" and token.spaced:
                if token.text in OPPOSITE:
                    found.append(comparison(source, i, first, last))
                elif token.text in ("&&", "||"):
                    found.append(boolean(source, i, first, last))
            elif token.kind == "number":
                found.append(off_by_one(source, i))
            elif token.text == "memory_order_seq_cst":
                found.append(weaker_order(source, i))
    for siblings in source.statements:
        previous = None  # the call before this one
        for statement in siblings:
            call = statement and is_call(source, *statement)
            if call:
                found += dropped(source, *statement)
                if previous and related(source, previous, statement):
                    found.append(swapped(source, previous, statement))
                    call = False  # pairs do not overlap
            elif statement:
                found.append(unlocked(source, *statement))
            previous = statement if call else None
    for condition in source.conditions:
        found.append(guard(source, *condition))
    found = [m for m in found if m is not None]
    # Of two with the same extent, the one that changes a statement is outside.
    found.sort(key=lambda m: (m.start, -m.end, -OPERATORS.index(m.operator)))
    kept, around = [], []
    for mutant in found:
        while around and around[-1].end <= mutant.start:
            around.pop()
        if around and mutant.end > around[-1].end:
            continue
        if around:
            around[-1].children.append(mutant)
        mutant.outer = not around
        kept.append(mutant)
        around.append(mutant)
    return kept


def rewrite(source, mutants, dropped_numbers):
    """The text of the source with its mutants, except those whose numbers are dropped."""
    def render(start, end, children):
        pieces, at = [], start
        for m in children:
            if m.start < start or m.end > end:
                continue
            pieces += [source.text[at:m.start], apply(m)]
            at = m.end
        return "".join(pieces) + source.text[at:end]

    def apply(m):
        if m.number in dropped_numbers:
            return render(m.start, m.end, m.children)
        return m.make(m.number, lambda start, end: render(start, end, m.children))

    return render(0, len(source.text), [m for m in mutants if m.outer])


def flat(text):
    return text.replace("\n", " ")


# Operands.
def operands(source, i, first, last, stops):
    """The offsets of both operands of the operator at token i, or None."""
    tokens = source.tokens
    k = i - 1
    to_the_right, stops = stops, stops - {tokens[i].text} if tokens[i].text in ("&&", "||") else stops  # a && b && c
    while k >= first:
        t = tokens[k]
        if t.text in ")]}":
            if t.match is None or (t.text == "}" and tokens[k + 1].kind in ("word", "number") and k + 1 <= i - 1):
                break
            k = t.match - 1
            continue
        if t.text in OPENING or t.text in WORDS or (t.text in stops and (t.spaced or t.text in ",;:?")):
            break
        if t.text in stops and source.text[t.end] == "\n":
            break
        k -= 1
    begin = k + 1
    stops = to_the_right
    k = i + 1
    while k < last:
        t = tokens[k]
        if t.text in OPENING:
            if t.match is None:
                return None
            k = t.match + 1
            continue
        if t.text in ")]}" or t.text == ";" or (t.text in stops and (t.spaced or t.text in ",:?")):
            break
        k += 1
    if begin > i - 1 or k == i + 1:
        return None
    return tokens[begin].start, tokens[i - 1].end, tokens[i + 1].start, tokens[k - 1].end


def comparison(source, i, first, last):
    span = operands(source, i, first, last, STOPS["compare"])
    if span is None:
        return None
    a, b, c, d = span
    token = source.tokens[i]
    other, name = OPPOSITE[token.text]
    gap = "\n" * source.text[b:c].count("\n")
    return Mutant(source, COMPARISON, a, d, token.start, source.text[a:d], source.text[a:b] + f" {other} " + source.text[c:d],
                  lambda n, keep: f"berth_mutation::{name}({n}, {keep(a, b)},{gap} {keep(c, d)})")


def boolean(source, i, first, last):
    token = source.tokens[i]
    span = operands(source, i, first, last, STOPS[token.text])
    if span is None:
        return None
    a, b, c, d = span
    gap = "\n" * source.text[b:c].count("\n")
    conjunction = token.text == "&&"
    other = "||" if conjunction else "&&"
    how = "both" if conjunction else "either"
    # Evaluates the second operand exactly when the operator that is switched on does.
    return Mutant(source, BOOLEAN, a, d, token.start, source.text[a:d], source.text[a:b] + f" {other} " + source.text[c:d],
                  lambda n, keep: f"(berth_mutation::{how}_goes_on({n}, static_cast<bool>({keep(a, b)})) ?{gap} "
                                  f"static_cast<bool>({keep(c, d)}) : berth_mutation::{how}_ends({n}))")


def off_by_one(source, i):
    token, before = source.tokens[i], source.tokens[i - 1]
    m = re.fullmatch(r"([01])([uUlLzZ]*)", token.text)
    if m is None:
        return None
    other = "1" if m[1] == "0" else "0"
    starts_a_loop = before.text == "=" and source.tokens[i + 1].text in (";", ",") and any(
        t.text == "for" for t in source.tokens[max(0, i - 8):i])
    if not starts_a_loop and not (before.text in ("+", "-") and before.spaced and m[1] == "1"):
        return None
    a, b = token.start, token.end
    line = source.line(a)
    begin, end = source.line_starts[line - 1], (source.text.find("\n", b))
    text = source.text[begin:end]
    return Mutant(source, OFF_BY_ONE, a, b, a, text, text[:a - begin] + other + m[2] + text[b - begin:],
                  lambda n, keep: f"(berth_mutation::on({n}) ? {other}{m[2]} : {token.text})")


def weaker_order(source, i):
    if source.tokens[i - 1].text != "::":
        return None
    a, b = source.tokens[i - 2].start, source.tokens[i].end
    text = source.text[a:b]
    line = source.line(a)
    whole = source.text[source.line_starts[line - 1]:source.text.find("\n", b)]
    return Mutant(source, LOCK, a, b, a, whole, whole.replace("seq_cst", "relaxed"),
                  lambda n, keep: f"(berth_mutation::on({n}) ? std::memory_order_relaxed : {text})")


# Statements.
def is_call(source, first, last):
    """Whether these tokens are a call whose result is not used, such as `lists_[i].push_back(x);`."""
    tokens = source.tokens
    if tokens[first].kind not in ("word", "sign") or tokens[first].text in NO_CALLS or last <= first:
        return False
    k, adjacent, ended = first, False, False
    while k < last:
        t = tokens[k]
        if t.text in ("(", "["):
            if t.match is None:
                return False
            ended, adjacent = t.text == "(", False
            k = t.match + 1
            continue
        if t.kind == "word":
            if adjacent or t.text in NO_CALLS:
                return False  # two words: a declaration
            adjacent = True
        elif t.text in ("::", ".", "->"):
            adjacent = False
        elif t.text in ("<", ">") and not t.spaced:
            pass  # of a template
        elif t.text == "*" and k == first:
            pass
        else:
            return False
        ended = False
        k += 1
    return ended and tokens[first].text != "("


def dropped(source, first, last):
    a, b = source.tokens[first].start, source.tokens[last].end
    text = source.text[a:b]
    if "#" in text:
        return
    name = source.tokens[first].text
    if name == "BERTH_TRY":
        c, d = source.tokens[first + 1].end, source.tokens[last - 1].start
        if 'R"' not in text:
            yield Mutant(source, IGNORED, a, b, a, text, f"static_cast<void>({source.text[c:d]});",
                         lambda n, keep: f"{{ if (berth_mutation::on({n})) {{ static_cast<void>({flat(keep(c, d))}); }} "
                                         f"else {{ {keep(a, b)} }} }}")
        return
    words = [t.text for t in source.tokens[first:last] if t.kind == "word"]
    called = callee(source, first, last)
    operator = LOCK if FENCES.search(called) or called in ("lock", "unlock") else CALL
    if operator == CALL and called in ("reserve", "shrink_to_fit", "assert_held"):
        return  # hints: nothing but time and memory follows from them
    if words:
        yield Mutant(source, operator, a, b, a, text, "(nothing)", lambda n, keep: f"{{ if (!berth_mutation::on({n})) {{ {keep(a, b)} }} }}")


def callee(source, first, last):
    """The name before the last argument list of a call."""
    k = source.tokens[last - 1].match
    while k is not None and k > first:
        k -= 1
        if source.tokens[k].kind == "word":
            return source.tokens[k].text
    return source.tokens[first].text


def related(source, one, two):
    """Whether one of two calls names the object of the other, so that their order may matter."""
    def names(first, last):
        return [t.text for t in source.tokens[first:last] if t.kind == "word" and t.text not in ("std", "this", "move", "BERTH_TRY")]

    def subject(first, last):
        words = names(first, last)
        free = source.tokens[first + 1].text in ("(", "::")  # a function: the first name among its arguments
        return words[1 if free and len(words) > 1 else 0] if words else None
    return subject(*one) in names(*two) or subject(*two) in names(*one)


def swapped(source, one, two):
    a, b = source.tokens[one[0]].start, source.tokens[one[1]].end
    c, d = source.tokens[two[0]].start, source.tokens[two[1]].end
    if "#" in source.text[a:d] or 'R"' in source.text[a:d]:
        return None
    return Mutant(source, ORDER, a, d, a, source.text[a:d], source.text[c:d] + " " + source.text[a:b],
                  lambda n, keep: f"{{ if (berth_mutation::on({n})) {{ {flat(keep(c, d))} {flat(keep(a, b))} }} else {{ {keep(a, d)} }} }}")


def unlocked(source, first, last):
    words = [t.text for t in source.tokens[first:first + 4]]
    if words[:1] == ["const"]:
        words, first = words[1:], first + 1
    if not words or words[0] not in LOCKS or len(words) < 3 or words[2] != "(":
        return None
    opening = source.tokens[first + 2]
    if opening.match != last - 1:
        return None
    a, b = opening.end, source.tokens[last - 1].start
    begin, end = source.tokens[first].start, source.tokens[last].end
    text = source.text[a:b]
    return Mutant(source, LOCK, a, b, begin, source.text[begin:end], "(nothing)",
                  lambda n, keep: f"*(berth_mutation::on({n}) ? berth_mutation::spare({flat(text)}) : &({text}))")


def guard(source, first, last, body_first, body_last):
    """An `if` that leaves: its condition can be taken for false."""
    tokens = source.tokens
    if tokens[body_first].text == "{":
        body_first, body_last = body_first + 1, body_last - 1
    if body_first > body_last or tokens[body_first].text not in ("return", "continue", "break", "throw"):
        return None
    if any(t.text == ";" for t in tokens[body_first:body_last]):
        return None
    k = first
    for j in range(first, last + 1):  # after the initializer
        if tokens[j].text == ";" and not inside(tokens, first, j):
            k = j + 1
    if any(t.text == "=" and t.spaced for t in tokens[k:last + 1]):
        return None
    a, b = tokens[k].start, tokens[last].end
    body = source.text[tokens[body_first].start:tokens[body_last].end]
    return Mutant(source, IGNORED, a, b, a, f"if ({source.text[a:b]}) {body}", "(nothing)",
                  lambda n, keep: f"(!berth_mutation::on({n}) && static_cast<bool>({keep(a, b)}))")


def inside(tokens, first, j):
    """Whether token j is between brackets that open after `first`."""
    k = first
    while k < j:
        if tokens[k].text in OPENING and tokens[k].match is not None:
            if tokens[k].match > j:
                return True
            k = tokens[k].match
        k += 1
    return False
