//! Every CUDA kernel has a row in `kernels/variants.tsv`, a twin on the CPU and a golden vector that a test runs it on.

use crate::demand;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = "kernels/variants.tsv";
const TESTS: &str = "crates/driftless-device/tests/kernels/";
/// Names of kernels begin with it, and nothing else does.
const PREFIX: &str = "driftless_";

#[test]
fn kernels_have_twins_and_golden_vectors() {
    demand("a kernel without its twin or its vector", &offenders(&Tree::of_this_repository()));
}

/// A row of the table.
struct Row<'a> {
    file: &'a str,
    twin: &'a str,
    golden: &'a str,
}

fn offenders(tree: &Tree) -> Vec<String> {
    let Some((_, table)) = tree.ending(TABLE).next() else {
        return vec![format!("{TABLE} is missing")];
    };
    let rows = rows(table);
    let defined = defined(tree);
    let unlisted = defined.iter().filter(|name| !rows.contains_key(*name));
    let unlisted = unlisted.map(|name| format!("{TABLE}: no row of {name}"));
    unlisted.chain(rows.iter().flat_map(|(name, row)| row_offenders(tree, &defined, name, row))).collect()
}

fn rows(table: &str) -> BTreeMap<&str, Row<'_>> {
    let lines = table.lines().filter(|line| line.starts_with(PREFIX));
    let cells = lines.map(|line| line.split('\t').collect::<Vec<_>>());
    cells
        .filter_map(|cells| match cells[..] {
            [name, file, twin, golden, ..] => Some((name, Row { file, twin, golden })),
            _ => None,
        })
        .collect()
}

/// The kernels of all files.
fn defined(tree: &Tree) -> BTreeSet<&str> {
    let files = tree.ending(".cu").filter(|(path, _)| path.starts_with("kernels/"));
    files.flat_map(|(_, text)| names(text)).collect()
}

/// The names of kernels in a text, whole.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.starts_with(PREFIX))
}

fn row_offenders(tree: &Tree, defined: &BTreeSet<&str>, name: &str, row: &Row<'_>) -> Vec<String> {
    let is_vector = |(path, _): (&str, usize)| path.starts_with(&format!("{}/", row.golden));
    let folder = row.golden.rsplit('/').next().unwrap_or_default();
    // Tests name families and kernels in full or by what comes last.
    let stem = name.rsplit_once("_detect_").map_or(name, |(_, form)| form);
    let is_run =
        tree.texts().any(|(path, text)| path.starts_with(TESTS) && text.contains(&format!("\"{stem}\"")));
    let is_read =
        tree.texts().any(|(path, text)| path.starts_with(TESTS) && text.contains(&format!("\"{folder}\"")));
    let wrong = [
        (!defined.contains(name), "no kernel has this name".to_owned()),
        (!tree.has(&format!("kernels/{}", row.file)), format!("no file kernels/{}", row.file)),
        (!tree.has(row.twin), format!("no twin {}", row.twin)),
        (!tree.sizes().any(is_vector), format!("no vectors in {}", row.golden)),
        (!is_run, format!("no test in {TESTS} runs it")),
        (!is_read, format!("no test in {TESTS} reads {}", row.golden)),
    ];
    wrong
        .into_iter()
        .filter(|(is_wrong, _)| *is_wrong)
        .map(|(_, why)| format!("{TABLE}: {name}: {why}"))
        .collect()
}

#[test]
fn kernels_without_twins_vectors_and_tests_are_found() {
    let table = "kernel\tfile\ttwin\tgolden\n\
        driftless_a\ta.cu\ttwin.rs\ttests/golden/v\t9\n\
        driftless_b\tb.cu\tnone.rs\ttests/golden/w\t9\n";
    let tree = Tree::of(&[
        (TABLE, table),
        ("kernels/a.cu", "KERNEL driftless_a(int driftless) KERNEL driftless_c()"),
        ("twin.rs", ""),
        ("tests/golden/v/1", ""),
        ("crates/driftless-device/tests/kernels/a.rs", "launch(\"driftless_a\", \"v\")"),
    ]);
    let found = offenders(&tree);
    assert_eq!(
        found,
        [
            "kernels/variants.tsv: no row of driftless_c",
            "kernels/variants.tsv: driftless_b: no kernel has this name",
            "kernels/variants.tsv: driftless_b: no file kernels/b.cu",
            "kernels/variants.tsv: driftless_b: no twin none.rs",
            "kernels/variants.tsv: driftless_b: no vectors in tests/golden/w",
            &format!("kernels/variants.tsv: driftless_b: no test in {TESTS} runs it"),
            &format!("kernels/variants.tsv: driftless_b: no test in {TESTS} reads tests/golden/w"),
        ]
    );
    assert_eq!(offenders(&Tree::of(&[])), [format!("{TABLE} is missing")]);
}
