//! What may be tracked: small files that speak of the project alone.

use crate::demand;
use crate::source::line_of;
use crate::tree::Tree;
use toml::Table;

/// Where data of tests lies: the only large files.
const GOLDEN: &str = "tests/golden/";
const FILE_BYTES_MAX: usize = 64 << 10;
const GOLDEN_BYTES_MAX: usize = 14 << 20;
/// Written by a tool, and as long as it has to be.
const LOCK_FILE: &str = "Cargo.lock";
/// Top folders of the machines on which people build.
const MACHINE_FOLDERS: [&str; 3] = ["work", "root", "home"];

#[test]
fn tracked_files_are_small() {
    demand("a tracked file above its bound", &large(&Tree::of_this_repository()));
}

#[test]
fn files_name_no_path_of_a_machine() {
    demand("a path of some machine", &machine_paths(&Tree::of_this_repository()));
}

#[test]
fn configurations_parse() {
    demand("a configuration that is no TOML", &broken_configurations(&Tree::of_this_repository()));
}

fn large(tree: &Tree) -> Vec<String> {
    let (golden, others): (Vec<_>, Vec<_>) = tree.sizes().partition(|(path, _)| path.starts_with(GOLDEN));
    let large = others.into_iter().filter(|&(path, bytes)| path != LOCK_FILE && bytes > FILE_BYTES_MAX);
    let mut offenders: Vec<_> = large
        .map(|(path, bytes)| format!("{path}: {bytes} bytes, expected at most {FILE_BYTES_MAX}"))
        .collect();
    let golden_bytes: usize = golden.iter().map(|(_, bytes)| bytes).sum();
    if golden_bytes > GOLDEN_BYTES_MAX {
        offenders.push(format!("{GOLDEN}: {golden_bytes} bytes, expected at most {GOLDEN_BYTES_MAX}"));
    }
    offenders
}

fn machine_paths(tree: &Tree) -> Vec<String> {
    let folders = MACHINE_FOLDERS.map(|folder| format!("/{folder}/"));
    tree.texts().flat_map(|(path, text)| paths_in(path, text, &folders)).collect()
}

/// An absolute path begins a word: `a/home/b` is none.
fn paths_in(path: &str, text: &str, folders: &[String]) -> Vec<String> {
    let begins = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || "._-".contains(c));
    let places = folders.iter().flat_map(|folder| text.match_indices(folder.as_str()));
    let absolute = places.filter(|&(at, _)| begins(at));
    absolute.map(|(at, found)| format!("{path}:{}: {found}", line_of(text, at))).collect()
}

fn broken_configurations(tree: &Tree) -> Vec<String> {
    let configurations = tree.ending(".toml").filter(|(path, _)| path.starts_with("config/"));
    let parsed = configurations.map(|(path, text)| (path, text.parse::<Table>()));
    parsed.filter_map(|(path, parsed)| Some(format!("{path}: {}", parsed.err()?))).collect()
}

#[test]
fn what_should_not_be_tracked_is_found() {
    let [large_text, small_text] = [FILE_BYTES_MAX + 1, FILE_BYTES_MAX].map(|bytes| "x".repeat(bytes));
    let golden = "x".repeat(GOLDEN_BYTES_MAX + 1);
    let tree = Tree::of(&[
        ("Cargo.lock", &large_text),
        ("a", &small_text),
        ("b", &large_text),
        ("tests/golden/c", &golden),
    ]);
    let expected = ["b: 65537 bytes, expected at most 65536"];
    assert_eq!(large(&tree)[..1], expected);
    assert_eq!(large(&tree)[1..], ["tests/golden/: 14680065 bytes, expected at most 14680064"]);

    let [absolute, relative] = ["", "../a"].map(|start| format!("x\ny {start}/{}/b", MACHINE_FOLDERS[0]));
    let tree = Tree::of(&[("a.md", &absolute), ("b.md", &relative)]);
    assert_eq!(machine_paths(&tree), [format!("a.md:2: /{}/", MACHINE_FOLDERS[0])]);

    let tree = Tree::of(&[("config/a.toml", "a = 1"), ("config/b.toml", "a"), ("c/c.toml", "a")]);
    let broken = broken_configurations(&tree);
    assert!(matches!(&broken[..], [one] if one.starts_with("config/b.toml: ")), "{broken:?}");
}
