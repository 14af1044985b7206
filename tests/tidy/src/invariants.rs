//! Invariants have ids: `LY` layout, `EX` exchange, `CM` commit, `LG` log, each with a number.
//!
//! An id that a crate's Rust code cites is stated in a module header (a `//!` line) or in a `.md` file of that crate,
//! and some test in the workspace carries it in its name: `ly1_..` pins the first of the layout. Packages that only
//! test or show may cite what any crate states.

use crate::demand;
use crate::source::{functions, is_word, line_of};
use crate::tree::{Tree, package};
use std::collections::{BTreeMap, BTreeSet};

const FAMILIES: [&str; 4] = ["LY", "EX", "CM", "LG"];

#[test]
fn cited_invariants_are_stated_and_pinned() {
    demand("an invariant that is cited only", &offenders(&Tree::of_this_repository()));
}

fn offenders(tree: &Tree) -> Vec<String> {
    let stated = stated(tree);
    let everywhere: BTreeSet<&String> = stated.values().flatten().collect();
    let pinned = pinned(tree);
    let mut offenders = Vec::new();
    for ((package, id), place) in first_citations(tree) {
        let is_stated = if package.starts_with("crates/") {
            stated.get(package).is_some_and(|ids| ids.contains(&id))
        } else {
            everywhere.contains(&id)
        };
        if !is_stated {
            offenders.push(format!("{place}: {id} stands in no module header and no .md file of {package}"));
        }
        if !pinned.contains(&id) {
            offenders.push(format!("{place}: no test is named {}_..", test_prefix(&id)));
        }
    }
    offenders
}

/// Where each package cites each id first.
fn first_citations(tree: &Tree) -> BTreeMap<(&str, String), String> {
    let mut places = BTreeMap::new();
    for (path, text) in tree.ending(".rs") {
        for (at, id) in ids(text) {
            places.entry((package(path), id)).or_insert_with(|| format!("{path}:{}", line_of(text, at)));
        }
    }
    places
}

/// The ids that each package states.
fn stated(tree: &Tree) -> BTreeMap<&str, BTreeSet<String>> {
    let mut stated: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in tree.texts() {
        let is_header =
            |line: &&str| path.ends_with(".md") || path.ends_with(".rs") && line.starts_with("//!");
        let found = text.lines().filter(is_header).flat_map(ids).map(|(_, id)| id);
        stated.entry(package(path)).or_default().extend(found);
    }
    stated
}

/// The ids that some test has in its name.
fn pinned(tree: &Tree) -> BTreeSet<String> {
    let tests = tree.ending(".rs").flat_map(|(_, text)| functions(text)).filter(|function| function.is_test);
    tests.flat_map(|test| ids_of_test(&test.name).collect::<Vec<_>>()).collect()
}

/// `ex3_posts_before_waiting` pins number 3 of the exchange's; a test that pins several names them one after another.
fn ids_of_test(name: &str) -> impl Iterator<Item = String> {
    name.split('_').map_while(|word| {
        let family = FAMILIES.into_iter().find(|family| word.starts_with(&family.to_lowercase()))?;
        let number: u32 = word[family.len()..].parse().ok()?;
        Some(format!("{family}-{number}"))
    })
}

fn test_prefix(id: &str) -> String {
    id.to_lowercase().replace('-', "")
}

/// The ids in a text, and where.
fn ids(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<_> = FAMILIES.into_iter().flat_map(|family| ids_of_family(text, family)).collect();
    found.sort_unstable();
    found
}

fn ids_of_family(text: &str, family: &str) -> Vec<(usize, String)> {
    let start = format!("{family}-");
    let places = text.match_indices(&start).filter(|&(at, _)| !text[..at].ends_with(is_word));
    let numbered = places.filter_map(|(at, start)| {
        let rest = &text[at + start.len()..];
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        (!digits.is_empty()).then(|| (at, format!("{start}{digits}")))
    });
    numbered.collect()
}

#[test]
fn an_invariant_that_is_only_cited_is_found() {
    // Built from parts, so that this file cites none.
    let [first, second, third] = [1, 2, 3].map(|number| format!("EX{}{number}", '-'));
    let cites = format!("//! {first}\n// {second}\n#[test]\nfn ex1_holds() {{}}\nfn ex2_is_no_test() {{}}\n");
    let elsewhere = format!("// {second} {third}x\n#[test]\nfn ex3_holds() {{}}");
    let states = format!("{second}, {third}");
    let tree = Tree::of(&[
        ("crates/a/src/lib.rs", &cites),
        ("crates/b/P.md", &states),
        ("tests/c/src/lib.rs", &elsewhere),
    ]);
    assert_eq!(
        offenders(&tree),
        [
            format!("crates/a/src/lib.rs:2: {second} stands in no module header and no .md file of crates/a"),
            "crates/a/src/lib.rs:2: no test is named ex2_..".to_owned(),
            "tests/c/src/lib.rs:1: no test is named ex2_..".to_owned(),
        ]
    );
}
