//! Arrows between crates only go down, and every one that is there is listed here.

use crate::demand;
use crate::tree::Tree;
use toml::{Table, Value};

/// Words: nothing below them.
const TYPES: &str = "driftless-types";
const NUMERICS: &str = "driftless-numerics";
const LAYOUT: &str = "driftless-layout";
const CODEC: &str = "driftless-codec";
const PROTO: &str = "driftless-proto";
const DEVICE: &str = "driftless-device";
const TRANSPORT: &str = "driftless-transport";
const STORE: &str = "driftless-store";
const RUNTIME: &str = "driftless-runtime";
const TESTKIT: &str = "driftless-testkit";
const FACADE: &str = "driftless";

/// Which of our crates each crate may depend on.
const ARROWS: [(&str, &[&str]); 12] = [
    (TYPES, &[]),
    (NUMERICS, &[TYPES]),
    (CODEC, &[TYPES, NUMERICS]),
    (LAYOUT, &[TYPES]),
    (PROTO, &[TYPES]),
    (DEVICE, &[TYPES, NUMERICS, LAYOUT, CODEC]),
    (TRANSPORT, &[TYPES]),
    (STORE, &[TYPES, CODEC]),
    (RUNTIME, &[TYPES, NUMERICS, LAYOUT, CODEC, PROTO, DEVICE, TRANSPORT, STORE]),
    (FACADE, &[RUNTIME]),
    (TESTKIT, &[TYPES, NUMERICS, LAYOUT, CODEC, PROTO, DEVICE, TRANSPORT, STORE, RUNTIME]),
    (
        "driftless-cli",
        &[FACADE, TESTKIT, TYPES, NUMERICS, LAYOUT, CODEC, PROTO, DEVICE, TRANSPORT, STORE, RUNTIME],
    ),
];

/// Crates without tasks, threads, files and clocks.
pub(crate) const PURE: [&str; 5] = [TYPES, NUMERICS, LAYOUT, CODEC, PROTO];

/// What has no place in a pure crate.
const IMPURE: [&str; 6] = ["tokio", "ractor", "rayon", "dashmap", "tracing-subscriber", "tempfile"];

#[test]
fn arrows_only_go_down() {
    demand("a dependency that the layers do not allow", &offenders(&Tree::of_this_repository()));
}

fn offenders(tree: &Tree) -> Vec<String> {
    let manifests = tree.ending("/Cargo.toml").filter(|(path, _)| path.starts_with("crates/"));
    manifests.flat_map(|(path, text)| manifest_offenders(path, text)).collect()
}

fn manifest_offenders(path: &str, text: &str) -> Vec<String> {
    let manifest: Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![format!("{path}: {error}")],
    };
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
    let name = name.unwrap_or("a package without a name");
    let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
        return vec![format!("{path}: {name} has no row in the table of arrows")];
    };
    let refused = |dependency: &String| {
        let is_ours = dependency == FACADE || dependency.starts_with("driftless-");
        let is_impure = PURE.contains(&name) && IMPURE.contains(&dependency.as_str());
        is_impure || is_ours && !allowed.contains(&dependency.as_str())
    };
    let at =
        |dependency: &str| text.lines().position(|line| line.starts_with(dependency)).map_or(1, |at| at + 1);
    let offences = dependencies(&manifest).into_iter().filter(refused);
    offences.map(|dependency| format!("{path}:{}: {name} -> {dependency}", at(&dependency))).collect()
}

/// Ordinary and build dependencies, those of single platforms included; tests may use what they like.
fn dependencies(manifest: &Table) -> Vec<String> {
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let holders = std::iter::once(manifest).chain(platforms.filter_map(Value::as_table));
    let tables = holders.flat_map(|holder| {
        ["dependencies", "build-dependencies"].into_iter().filter_map(|key| holder.get(key)?.as_table())
    });
    // A dependency may go by another name than its package.
    let package = |(name, value): (&String, &Value)| {
        value.get("package").and_then(Value::as_str).unwrap_or(name).to_owned()
    };
    tables.flatten().map(package).collect()
}

#[test]
fn an_arrow_that_goes_up_is_found() {
    let tree = Tree::of(&[
        (
            "crates/driftless-codec/Cargo.toml",
            "[package]\nname = \"driftless-codec\"\n[dependencies]\ndriftless-types.workspace = true\n\
             driftless-layout.workspace = true\nbytes = \"1\"\nx = { package = \"driftless-proto\", path = \"\" }\n\
             [dev-dependencies]\ndriftless-testkit.workspace = true\n[target.'cfg(unix)'.dependencies]\ntokio = \"1\"",
        ),
        ("crates/new/Cargo.toml", "[package]\nname = \"driftless-new\""),
    ]);
    assert_eq!(
        offenders(&tree),
        [
            "crates/driftless-codec/Cargo.toml:5: driftless-codec -> driftless-layout",
            "crates/driftless-codec/Cargo.toml:1: driftless-codec -> driftless-proto",
            "crates/driftless-codec/Cargo.toml:11: driftless-codec -> tokio",
            "crates/new/Cargo.toml: driftless-new has no row in the table of arrows",
        ]
    );
}
