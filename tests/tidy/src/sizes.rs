//! Files and functions that can be read in one sitting.

use crate::demand;
use crate::source::functions;
use crate::tree::Tree;

/// Lines of a file, without the tests at its end, stay below this.
const FILE_LINES: usize = 500;
/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

#[test]
fn files_are_short() {
    demand("a file of 500 lines or more, tests aside", &long_files(&Tree::of_this_repository()));
}

#[test]
fn functions_are_short() {
    demand("a function of more than 70 lines", &long_functions(&Tree::of_this_repository()));
}

fn long_files(tree: &Tree) -> Vec<String> {
    let sizes = tree.ending(".rs").map(|(path, text)| (path, lines_before_tests(text)));
    let long = sizes.filter(|&(_, lines)| lines >= FILE_LINES);
    long.map(|(path, lines)| format!("{path}:{FILE_LINES}: {lines} lines")).collect()
}

/// The tests at the end of a file begin with `#[cfg(test)]` and a module.
fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod "));
    tail.unwrap_or(lines.len())
}

fn long_functions(tree: &Tree) -> Vec<String> {
    let all = tree.ending(".rs").flat_map(|(path, text)| functions(text).into_iter().map(move |f| (path, f)));
    let long = all.filter(|(_, function)| function.lines > FUNCTION_LINES_MAX);
    long.map(|(path, f)| format!("{path}:{}: {} has {} lines", f.line, f.name, f.lines)).collect()
}

#[test]
fn what_is_too_long_is_found() {
    let long_file = "\n".repeat(500);
    let with_tests = format!("{}#[cfg(test)]\nmod tests {{\n{}}}", "\n".repeat(499), "\n".repeat(100));
    let tree = Tree::of(&[("a.rs", &long_file), ("b.rs", &with_tests)]);
    assert_eq!(long_files(&tree), ["a.rs:500: 500 lines"]);

    let [just_right, long] = [68, 69].map(|lines| format!("\nfn f() {{{}\n}}", "\n".repeat(lines)));
    let tree = Tree::of(&[("a.rs", &just_right), ("b.rs", &long)]);
    assert_eq!(long_functions(&tree), ["b.rs:2: f has 71 lines"]);
}
