//! What the first file of a crate says, and where unsafe code may stand.

use crate::demand;
use crate::layers::PURE;
use crate::source::{code, line_of, word_offsets};
use crate::tree::{Tree, package};

/// The only package with unsafe code.
const UNSAFE_PACKAGE: &str = "crates/driftless-device";

#[test]
fn crates_begin_with_a_sentence() {
    demand("a crate that does not begin with //!", &silent(&Tree::of_this_repository()));
}

#[test]
fn pure_crates_forbid_unsafe_code() {
    let offenders = pure_without_forbid(&Tree::of_this_repository());
    demand("a pure crate without #![forbid(unsafe_code)]", &offenders);
}

#[test]
fn unsafe_code_stands_in_one_crate() {
    demand("unsafe code outside of driftless-device", &unsafe_elsewhere(&Tree::of_this_repository()));
}

fn silent(tree: &Tree) -> Vec<String> {
    let roots =
        tree.ending(".rs").filter(|(path, _)| path.ends_with("/lib.rs") || path.ends_with("/main.rs"));
    roots.filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| format!("{path}:1")).collect()
}

fn pure_without_forbid(tree: &Tree) -> Vec<String> {
    let is_root = |path: &str| PURE.iter().any(|name| path == format!("crates/{name}/src/lib.rs"));
    let roots = tree.ending("/lib.rs").filter(|(path, _)| is_root(path));
    let lax = roots.filter(|(_, text)| !text.lines().any(|line| line == "#![forbid(unsafe_code)]"));
    lax.map(|(path, _)| format!("{path}:1")).collect()
}

fn unsafe_elsewhere(tree: &Tree) -> Vec<String> {
    let safe = tree.ending(".rs").filter(|(path, _)| package(path) != UNSAFE_PACKAGE);
    safe.flat_map(|(path, text)| unsafe_places(path, text)).collect()
}

fn unsafe_places(path: &str, text: &str) -> Vec<String> {
    let code = code(text);
    word_offsets(&code, "unsafe").map(|at| format!("{path}:{}", line_of(&code, at))).collect()
}

#[test]
fn lax_headers_are_found() {
    let tree = Tree::of(&[
        ("crates/driftless-codec/src/lib.rs", "//! Says something.\nmod a;"),
        ("crates/driftless-types/src/lib.rs", "mod a;\n#![forbid(unsafe_code)]"),
        (
            "crates/driftless-types/src/a.rs",
            "// unsafe\nfn f() { \"unsafe\"; unsafe_code(); }\nunsafe fn g() {}",
        ),
        ("crates/driftless-device/src/a.rs", "unsafe fn g() {}"),
        ("examples/a/src/main.rs", "fn main() {}"),
    ]);
    assert_eq!(silent(&tree), ["crates/driftless-types/src/lib.rs:1", "examples/a/src/main.rs:1"]);
    assert_eq!(pure_without_forbid(&tree), ["crates/driftless-codec/src/lib.rs:1"]);
    assert_eq!(unsafe_elsewhere(&tree), ["crates/driftless-types/src/a.rs:3"]);
}
