//! Rust source, read just far enough to find functions and words in it.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of its `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from its `fn` to its closing brace.
    pub(crate) lines: usize,
    /// Whether an attribute above makes it a test.
    pub(crate) is_test: bool,
}

/// The source with comments and the insides of literals blanked out, line by line as long as before.
pub(crate) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let blanked = literal_or_comment(rest, code.chars().next_back());
        let length = blanked.unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8));
        let (now, later) = rest.split_at(length);
        match blanked {
            Some(_) => code.extend(now.chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
            None => code.push_str(now),
        }
        rest = later;
    }
    code
}

/// The length of the comment or literal at the front, if there is one.
fn literal_or_comment(text: &str, before: Option<char>) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(quoted(text, '"'));
    }
    if text.starts_with('\'') {
        return character(text);
    }
    let after_word = before.is_some_and(is_word);
    if after_word { None } else { raw_string(text) }
}

/// Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// A quote begins a character if it is escaped or closed right after; otherwise a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.chars().skip(1);
    let (first, second) = (chars.next()?, chars.next()?);
    (first == '\\' || second == '\'').then(|| quoted(text, '\''))
}

fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    if !after[hashes..].starts_with('"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let opened = text.len() - after.len() + hashes + 1;
    Some(text[opened..].find(&close).map_or(text.len(), |at| opened + at + close.len()))
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where a whole word stands in code: byte offsets.
pub(crate) fn word_offsets<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        !before.chars().next_back().is_some_and(is_word) && !after.chars().next().is_some_and(is_word)
    })
}

/// The line of an offset, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// All functions with a body, methods and nested ones included.
pub(crate) fn functions(text: &str) -> Vec<Function> {
    let code = code(text);
    let found = word_offsets(&code, "fn").filter_map(|at| {
        let rest = code[at + 2..].trim_start();
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        let end = body_end(&code, at)?;
        let line = line_of(&code, at);
        let lines = line_of(&code, end) - line + 1;
        // A type such as `fn(u8)` has no name.
        let is_function = !name.is_empty();
        is_function.then(|| Function { name, line, lines, is_test: is_test(&code, line) })
    });
    found.collect()
}

/// Where the body of the function at this offset closes; `None` if it has none.
fn body_end(code: &str, start: usize) -> Option<usize> {
    let (mut brackets, mut braces) = (0_i32, 0_i32);
    for (at, c) in code[start..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            '{' => braces += 1,
            '}' if braces == 1 => return Some(start + at),
            '}' => braces -= 1,
            ';' if brackets == 0 && braces == 0 => return None,
            _ => (),
        }
        if braces < 0 || brackets < 0 {
            return None;
        }
    }
    None
}

/// Whether one of the attributes right above a line is `#[test]` or ends in `::test`.
fn is_test(code: &str, line: usize) -> bool {
    let above: Vec<&str> = code.lines().take(line - 1).collect();
    let attributes = above.iter().rev().map(|line| line.trim());
    attributes
        .take_while(|line| line.starts_with("#[") || line.is_empty())
        .any(|line| line.starts_with("#[test]") || line.contains("::test"))
}

#[test]
fn comments_and_literals_are_blank() {
    let text = "a // b\nc /* d /* e */\n f */ g \"h\\\"{\" 'i' '\\'' &'j k r#\"l\"m\"# br\"n\" for";
    assert_eq!(
        code(text).split_whitespace().collect::<Vec<_>>(),
        ["a", "c", "g", "&'j", "k", "for"],
        "words outside of comments and literals"
    );
    assert_eq!(code(text).lines().count(), text.lines().count());
}

#[test]
fn functions_are_found_with_their_lines() {
    let text = "struct A(fn(u8) -> u8);\ntrait B { fn c(x: [u8; 3]); }\n/// d\n#[test]\n/// e\nfn f() {\n    \"}\";\n    fn g() {}\n}\n#[tokio::test(flavor = \"x\")]\nasync fn h() {\n}\nfn i() {}";
    let found = functions(text);
    let brief: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines, f.is_test)).collect();
    assert_eq!(brief, [("f", 6, 4, true), ("g", 8, 1, false), ("h", 11, 2, true), ("i", 13, 1, false)]);
}
