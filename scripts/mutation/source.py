"""A C++ source as tokens: enough to know statements and the operands of an operator, not enough to compile it.

It relies on the formatting that ./test format checks: a binary operator has blanks around it, an angle bracket of a
template has none. What it takes for an expression by mistake does not compile, and is left out then.
"""
import bisect
import re

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
      | (?P<raw>(?:u8|[LuU])?R"(?P<delimiter>[^()\s\\]*)\(.*?\)(?P=delimiter)")
      | (?P<string>(?:u8|[LuU])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?\d(?:'?[\w.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><<=|>>=|<=>|->\*|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w])""",
    re.VERBOSE | re.DOTALL | re.MULTILINE)
OPENING = {"(": ")", "[": "]", "{": "}"}
NOT_OURS = re.compile(r"__APPLE__|_WIN32|BERTH_THREAD_SANITIZER|BERTH_ADDRESS_SANITIZER|mdspan")
DECLARES = {"namespace", "extern"}
TYPES = {"class", "struct", "union"}
CONTROL = {"if", "for", "while", "switch"}


class Token:
    __slots__ = ("kind", "text", "start", "end", "spaced", "match")

    def __init__(self, kind, text, start, end, spaced):
        self.kind, self.text, self.start, self.end, self.spaced = kind, text, start, end, spaced
        self.match = None  # of a bracket: the index of its partner

    def __repr__(self):
        return self.text


class Source:
    """The text without comments, its tokens, the bodies of its functions and the statements in them."""

    def __init__(self, path, text):
        self.path = path
        self.raw_lines = text.split("\n")
        # Comments become blanks, so that every offset and every line stays.
        self.text = TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m["comment"] else m[0], text)
        self.line_starts = [0] + [m.end() for m in re.finditer("\n", self.text)]
        self.tokens = []
        self._tokenize()
        self._match_brackets()
        self.statements = []  # lists of (first, last) token indices, one list per block; last is the semicolon
        self.conditions = []  # (first, last, body_first, body_last) of an if
        self.constants = []   # (first, last) of what is evaluated by the compiler
        self.bodies = []      # (first, last) of functions that are executed at run time
        self._declarations(0, len(self.tokens))

    def line(self, offset):
        return bisect.bisect_right(self.line_starts, offset)

    def _tokenize(self):
        skipping = []  # per open #if: whether its text is left out
        for m in TOKEN.finditer(self.text):
            kind = m.lastgroup if m.lastgroup != "delimiter" else "raw"
            if kind == "directive":
                self._directive(m[0].strip(), skipping)
                continue
            if any(skipping):
                continue
            before = self.text[m.start() - 1:m.start()]
            after = self.text[m.end():m.end() + 1]
            self.tokens.append(Token(kind, m[0], m.start(), m.end(), before.isspace() and after.isspace()))

    @staticmethod
    def _directive(text, skipping):
        text = re.sub(r"^#\s*", "", text)
        if text.startswith("if"):
            negated = text.startswith("ifndef") or re.search(r"!\s*(defined|BERTH_)", text)
            skipping.append(bool(NOT_OURS.search(text)) and not negated)
        elif text.startswith(("else", "elif")) and skipping:
            skipping[-1] = False  # what follows #else of a skipped part is compiled; both halves of others may be
        elif text.startswith("endif") and skipping:
            skipping.pop()

    def _match_brackets(self):
        open_brackets = []
        for i, token in enumerate(self.tokens):
            if token.kind != "sign":
                continue
            if token.text in OPENING:
                open_brackets.append(i)
            elif token.text in OPENING.values() and open_brackets:
                other = open_brackets.pop()
                token.match, self.tokens[other].match = other, i

    # Declarations: finds the bodies of functions in namespaces and classes.
    def _declarations(self, i, end):
        header = []
        while i < end:
            token = self.tokens[i]
            if token.text == ";" or (token.text == ":" and header and header[-1].text in ("public", "private", "protected")):
                header = []
            elif token.text == "{" and token.match is not None:
                what = self._brace(header)
                if what == "scope":
                    self._declarations(i + 1, token.match)
                    header = []
                elif what == "function":
                    if not any(t.text in ("constexpr", "consteval") for t in header):
                        self.bodies.append((i + 1, token.match))
                        self._block(i + 1, token.match)
                    header = []
                else:
                    header.append(token)
                i = token.match
            elif token.text in OPENING and token.match is not None:
                header.append(token)
                i = token.match
            else:
                header.append(token)
            i += 1

    @staticmethod
    def _brace(header):
        words = [t.text for t in header]
        while words and words[0] == "template":
            depth, k = 0, 1
            while k < len(words):
                depth += {"<": 1, ">": -1, ">>": -2}.get(words[k], 0)
                k += 1
                if depth <= 0:
                    break
            words = words[k:]
        while words and words[0] in ("inline", "static", "typedef", "const", "constexpr"):
            words = words[1:]
        if not words or words[0] in DECLARES:
            return "scope"
        if words[0] == "enum":
            return "other"
        if words[0] in TYPES:
            return "scope"
        if any(w == "=" and words[k - 1] != "operator" for k, w in enumerate(words)) or "(" not in words:
            return "other"
        # A member that a constructor initializes with braces.
        if ":" in words and header[-1].kind == "word" and words[-2:-1] in ([","], [":"]):
            return "other"
        return "function"

    # Statements.
    def _block(self, i, end):
        siblings = []
        self.statements.append(siblings)
        while i < end:
            i = self._statement(i, end, siblings)

    def _statement(self, i, end, siblings):
        """Reads one statement from token i; returns the index after it."""
        token = self.tokens[i]
        if token.text == "{" and token.match is not None:
            self._block(i + 1, token.match)
            siblings.append(None)
            return token.match + 1
        if token.text in CONTROL or token.text == "else" or token.text in ("do", "try", "catch"):
            siblings.append(None)
            if token.text in ("else", "do", "try"):
                return self._branch(i + 1, end)
            k = i + 1
            constant = self.tokens[k].text == "constexpr"
            k += constant
            if self.tokens[k].text != "(" or self.tokens[k].match is None:
                return i + 1
            close = self.tokens[k].match
            if constant:
                self.constants.append((k, close))
            self._lambdas(k + 1, close)
            after = self._branch(close + 1, end)
            if token.text == "if" and not constant:
                self.conditions.append((k + 1, close - 1, close + 1, after - 1))
            return after
        if token.text in ("case", "default"):
            while i < end and self.tokens[i].text != ":":
                i += 1
            siblings.append(None)
            return i + 1
        first = i
        while i < end and self.tokens[i].text != ";":
            if self.tokens[i].text in OPENING and self.tokens[i].match is not None:
                i = self.tokens[i].match
            i += 1
        if any(t.text in ("static_assert", "constexpr") for t in self.tokens[first:first + 2]):
            self.constants.append((first, i))
        self._lambdas(first, i)
        siblings.append((first, i) if i < end else None)
        return i + 1

    def _branch(self, i, end):
        """Reads the statement that an if, an else or a loop executes."""
        self.statements.append([])
        return self._statement(i, end, self.statements[-1])

    def _lambdas(self, i, end):
        """Blocks inside an expression: brace groups with a statement in them."""
        while i < end:
            token = self.tokens[i]
            if token.text == "{" and token.match is not None:
                if any(t.text == ";" for t in self.tokens[i:token.match]):
                    self._block(i + 1, token.match)
                else:
                    self._lambdas(i + 1, token.match)
                i = token.match
            i += 1
