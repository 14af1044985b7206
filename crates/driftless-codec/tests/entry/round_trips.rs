//! What is sealed is verified, by those who trust its key and by nobody else.

use crate::kit::{all_kinds, body, delta, key, trust};
use driftless_codec::entry::{EntryError, Role, SignedEntry, Signer, Trust, TrustedKeys, object_digest};
use driftless_types::{Seq, WriterManifest, Writers};

#[test]
fn every_kind_comes_back() {
    for entry in all_kinds() {
        let object = SignedEntry::seal(&entry, &Signer::Key(key(1))).unwrap();
        let signed = SignedEntry::verify(&object, &trust(1), entry.seq).unwrap();
        assert_eq!(signed.entry, entry);
        assert_eq!(signed.object, object_digest(&object));
        assert_eq!(signed.key, Some(key(1).public().id()));
        assert_eq!(SignedEntry::seal(&entry, &Signer::Key(key(1))).unwrap(), object, "the same bytes again");
        let unsigned = SignedEntry::seal(&entry, &Signer::Unsigned).unwrap();
        let read = SignedEntry::verify(&unsigned, &Trust::AllowUnsigned, entry.seq).unwrap();
        assert_eq!((&read.entry, read.key), (&entry, None));
        let read = SignedEntry::verify(&object, &Trust::AllowUnsigned, entry.seq).unwrap();
        assert_eq!((read.entry, read.key), (entry, signed.key), "who checks no key sees which it names");
    }
}

#[test]
fn bodies_are_one_line_of_canonical_json() {
    for entry in all_kinds() {
        let body = body(&entry);
        assert!(!body.contains([' ', '\n']) && !body.contains("null"));
        let value: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), body, "keys are in byte order");
        assert_eq!(value["kind"], entry.kind.name());
    }
}

#[test]
fn a_reader_with_keys_refuses_everything_else() {
    let entry = delta();
    let verify = |signer: &Signer, trust: &Trust| {
        let object = SignedEntry::seal(&entry, signer).unwrap();
        SignedEntry::verify(&object, trust, entry.seq).map(|signed| signed.entry)
    };
    assert_eq!(verify(&Signer::Unsigned, &trust(1)), Err(EntryError::Unsigned));
    let stranger = key(2).public().id();
    assert_eq!(verify(&Signer::Key(key(2)), &trust(1)), Err(EntryError::UnknownKey { key: stranger }));
    let mut keys = TrustedKeys::new(key(2).public(), Role::Archivist);
    let refused = verify(&Signer::Key(key(2)), &Trust::Keys(keys.clone())).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("the entry is signed by key {stranger}, which is trusted as archivist, expected publisher")
    );
    keys.trust(key(2).public(), Role::Publisher);
    assert_eq!(verify(&Signer::Key(key(2)), &Trust::Keys(keys)), Ok(entry.clone()));
    // Without keys nothing is checked, and the result says so.
    assert_eq!(verify(&Signer::Key(key(2)), &Trust::AllowUnsigned), Ok(entry.clone()));
}

#[test]
fn the_place_is_that_of_the_key() {
    let object = SignedEntry::seal(&delta(), &Signer::Key(key(1))).unwrap();
    let error = SignedEntry::verify(&object, &trust(1), Seq(6)).unwrap_err();
    assert_eq!(error.to_string(), "the entry says that it is entry 5, expected 6, where it was found");
}

#[test]
fn more_writers_than_fit_go_to_a_blob() {
    let mut entry = delta();
    let mut publication = entry.kind.publication().unwrap().clone();
    let writers = |count| (0..count).map(|rank| WriterManifest { rank, blobs: vec![], nnz: 0 }).collect();
    publication.writer_count = 65_536;
    publication.writers = Writers::Inline(writers(65_536));
    let with = |publication| driftless_types::EntryKind::Anchor(publication);
    entry.kind = with(publication.clone());
    let error = SignedEntry::seal(&entry, &Signer::Unsigned).unwrap_err();
    assert!(matches!(error, EntryError::TooLarge { most: 1_048_576, .. }), "{error}");
    publication.writers = Writers::Blob(crate::kit::blob(1, 3_000_000));
    entry.kind = with(publication.clone());
    assert!(SignedEntry::seal(&entry, &Signer::Unsigned).is_ok());
    publication.writer_count = 65_537;
    entry.kind = with(publication);
    let error = SignedEntry::seal(&entry, &Signer::Unsigned).unwrap_err();
    assert_eq!(error.to_string(), "the number of writers is 65537, expected at most 65536");
}

/// With `preserve_order` anywhere in the tree, maps of JSON would keep the order of whoever wrote them.
#[test]
fn no_feature_in_the_tree_turns_the_order_of_keys_off() {
    let map: serde_json::Map<String, serde_json::Value> =
        ["b", "a", "c"].into_iter().map(|key| (key.to_owned(), 0.into())).collect();
    assert!(map.keys().is_sorted());
    let lock: toml::Table = include_str!("../../../../Cargo.lock").parse().unwrap();
    let packages = lock["package"].as_array().unwrap();
    let of_json: Vec<_> =
        packages.iter().filter(|package| package["name"].as_str() == Some("serde_json")).collect();
    assert_eq!(of_json.len(), 1, "one version of serde_json");
    let dependencies = of_json[0]["dependencies"].as_array().unwrap();
    assert!(
        !dependencies.iter().any(|name| name.as_str().is_some_and(|name| name.starts_with("indexmap"))),
        "serde_json with preserve_order"
    );
}
