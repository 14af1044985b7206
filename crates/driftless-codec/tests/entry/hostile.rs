//! Entries by somebody who means harm, signed and unsigned.

use crate::kit::{all_kinds, body, delta, key, object, trust};
use driftless_codec::entry::{EntryError, MAX_ENTRY_BYTES, SignedEntry, Signer, Trust};
use driftless_types::{Entry, EntryKind, ObjectDigest, Retry, Seq, Version};
use proptest::prelude::*;

/// Why a body is refused though a trusted key signed it.
fn refusal(body: &str) -> String {
    let error = SignedEntry::verify(&object(body), &trust(1), Seq(5)).expect_err("the entry is none");
    assert_eq!(error.retry(), Retry::Never);
    error.to_string()
}

/// The delta's body with one piece of text replaced.
fn changed(from: &str, to: &str) -> String {
    let body = body(&delta());
    assert_eq!(body.matches(from).count(), 1, "{from} in {body}");
    body.replace(from, to)
}

#[test]
fn the_kit_signs_as_we_do() {
    let sealed = SignedEntry::seal(&delta(), &Signer::Key(key(1))).unwrap();
    assert_eq!(object(&body(&delta())), sealed);
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    for entry in all_kinds() {
        let mut object = SignedEntry::seal(&entry, &Signer::Key(key(1))).unwrap().to_vec();
        for length in 0..object.len() {
            assert!(SignedEntry::verify(&object[..length], &trust(1), entry.seq).is_err(), "cut to {length}");
        }
        for bit in 0..8 * object.len() {
            object[bit / 8] ^= 1 << (bit % 8);
            assert!(SignedEntry::verify(&object, &trust(1), entry.seq).is_err(), "bit {bit} was flipped");
            object[bit / 8] ^= 1 << (bit % 8);
        }
        object.push(b'\n');
        assert!(SignedEntry::verify(&object, &trust(1), entry.seq).is_err());
    }
}

#[test]
fn the_size_comes_before_everything() {
    let huge = vec![b' '; MAX_ENTRY_BYTES + 1];
    let error = SignedEntry::verify(&huge, &trust(1), Seq(5)).unwrap_err();
    assert_eq!(error, EntryError::TooLarge { found: 1_048_577, most: 1_048_576 });
    let error = SignedEntry::verify(&huge[1..], &trust(1), Seq(5)).unwrap_err();
    assert!(matches!(error, EntryError::Lines { .. }));
}

#[test]
fn the_signature_comes_before_the_fields() {
    let mut object = object("not JSON at all");
    assert!(refusal("not JSON at all").starts_with("the entry cannot be read: "));
    object[0] ^= 1;
    let error = SignedEntry::verify(&object, &trust(1), Seq(5)).unwrap_err();
    assert_eq!(error, EntryError::Forged { key: key(1).public().id() });
}

#[test]
fn lines_of_signature_have_one_form() {
    let body = body(&delta());
    let good = String::from_utf8(object(&body)).unwrap();
    let id = key(1).public().id().to_string();
    for (from, to) in [
        ("\ned25519 ", "\ned25519  "),
        ("\ned25519 ", "\ned25518 "),
        (&id, &id[1..]),
        (&id, &id.to_uppercase()),
        ("\ned25519 ", "\r\ned25519 "),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        assert!(SignedEntry::verify(bad.as_bytes(), &trust(1), Seq(5)).is_err(), "{to:?}");
    }
    for line in ["", "unsigned ", "Unsigned", "ed25519", "none"] {
        let bad = format!("{body}\n{line}\n");
        let error = SignedEntry::verify(bad.as_bytes(), &Trust::AllowUnsigned, Seq(5)).unwrap_err();
        assert!(matches!(error, EntryError::Lines { .. }), "{line:?}: {error}");
    }
}

#[test]
fn a_signature_of_something_else_is_none() {
    // The same body signed without the context in front.
    let body = body(&delta());
    let secret = ed25519_dalek::SigningKey::from_bytes(&[1; 32]);
    let signature = ed25519_dalek::Signer::sign(&secret, body.as_bytes()).to_bytes();
    let digits: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    let object = format!("{body}\ned25519 {} {digits}\n", key(1).public().id());
    let error = SignedEntry::verify(object.as_bytes(), &trust(1), Seq(5)).unwrap_err();
    assert_eq!(error, EntryError::Forged { key: key(1).public().id() });
}

#[test]
fn there_is_one_spelling() {
    let not_canonical = "the entry is not canonical: encoding its fields again gives other bytes";
    let first = r#""base_version":11,"#;
    for (from, to) in [
        (r#""epoch":3"#, r#""epoch": 3"#.to_owned()),
        (r#""kind":"delta""#, r#""kind":"d\u0065lta""#.to_owned()),
        (first, format!(r#"{first}"run":null,"#)),
        (first, format!(r#"{first}"lease_ttl_s":600,"#)),
    ] {
        assert_eq!(refusal(&changed(from, &to)), not_canonical, "{to}");
    }
    // Keys in another order, and a field of another kind beside those of the delta.
    let moved = changed(first, "").replace('}', r#","base_version":11}"#);
    assert!(refusal(&moved).contains("cannot be read"), "the field stands in every object");
    assert_eq!(refusal(&format!("{} ", body(&delta()))), not_canonical);
}

#[test]
fn fields_are_known_and_there() {
    for (from, to, expected) in [
        (r#""epoch":3"#, r#""epoch":3,"extra":1"#, "unknown field `extra`"),
        (r#""epoch":3"#, r#""epoch":3,"epoch":3"#, "duplicate field `epoch`"),
        (r#""epoch":3,"#, "", "missing field `epoch`"),
        (r#""epoch":3"#, r#""epoch":-3"#, "invalid value: integer `-3`"),
        (r#""epoch":3"#, r#""epoch":3.5"#, "invalid type: floating point"),
        (r#""epoch":3"#, r#""epoch":9007199254740992"#, "expected an integer below 2^53"),
        (r#""epoch":3"#, r#""epoch":null"#, "invalid type: null"),
        (r#""epoch":3"#, r#""epoch":"3""#, "invalid type: string"),
        ("0123456789abcdef", "0123456789ABCDEF", "expected 16 lower-case hexadecimal digits"),
        ("0123456789abcdef", "0123456789abcde", "expected 16 lower-case hexadecimal digits"),
        (r#""base_version":11,"#, "", "an entry of kind delta has no base_version"),
        (r#""writer_count":2,"#, "", "an entry of kind delta has no writer_count"),
        (r#""kind":"delta""#, r#""kind":"dalta""#, "the kind of the entry is \"dalta\""),
        (r#""format":1"#, r#""format":2"#, "the format of the entry is 2, expected 1"),
        (r#""kind":"delta""#, r#""kind":"genesis""#, "an entry of kind genesis has no run"),
    ] {
        let text = refusal(&changed(from, to));
        assert!(text.contains(expected), "{to}: {text}");
    }
    assert!(refusal("[]").contains("cannot be read"));
    assert!(refusal("").contains("cannot be read"));
    assert!(refusal(&"[".repeat(100_000)).contains("cannot be read"));
}

#[test]
fn numbers_are_bounded() {
    for (from, to, expected) in [
        (
            r#""base_version":11"#,
            r#""base_version":12"#,
            "a delta from version 12 to version 12, expected a later one",
        ),
        (r#""writer_count":2"#, r#""writer_count":3"#, "the number of writers is 2, expected 3"),
        (
            r#""writer_count":2"#,
            r#""writer_count":4294967295"#,
            "the number of writers is 4294967295, expected at most 65536",
        ),
        (r#""rank":1"#, r#""rank":0"#, "the rank of a writer is 0, expected 1"),
        (r#""raw_bytes":4096"#, r#""raw_bytes":4097"#, "the raw length of a blob is 4097, expected 4096"),
        (
            r#""stored_bytes":4096"#,
            r#""stored_bytes":67108865"#,
            "the number of bytes of a blob is 67108865, expected at most 67108864",
        ),
    ] {
        assert_eq!(refusal(&changed(from, to)), expected);
    }
}

#[test]
fn what_readers_refuse_writers_do_not_write() {
    let refused = |entry: &Entry| SignedEntry::seal(entry, &Signer::Unsigned).unwrap_err().to_string();
    let entry = delta();
    assert_eq!(
        refused(&Entry { seq: Seq(0), ..entry.clone() }),
        "an entry of kind delta at place 0: genesis is entry 0, and no other is"
    );
    assert_eq!(
        refused(&Entry { parent: ObjectDigest::ZERO, ..entry.clone() }),
        "entry 5 names a parent of zeros: only that of genesis is zero"
    );
    assert_eq!(
        refused(&Entry { epoch: 1 << 53, ..entry.clone() }),
        "the epoch is 9007199254740992, expected less than 2^53"
    );
    assert_eq!(
        refused(&Entry { kind: EntryKind::Reset { version_below: Version(u64::MAX) }, ..entry.clone() }),
        "the bound of the version is 18446744073709551615, expected less than 2^53"
    );
    let anchors = vec![driftless_types::AnchorRef { seq: Seq(1), object: ObjectDigest::ZERO }; 17];
    assert_eq!(
        refused(&Entry { kind: EntryKind::Retire { keep_from: Seq(1), anchors }, ..entry }),
        "the number of anchors is 17, expected at most 16"
    );
    let genesis = all_kinds().remove(0);
    assert_eq!(
        refused(&Entry { parent: ObjectDigest([1; 32]), ..genesis.clone() }),
        "entry 0 names a parent of other digits: only that of genesis is zero"
    );
    assert_eq!(
        refused(&Entry { seq: Seq(1), ..genesis }),
        "an entry of kind genesis at place 1: genesis is entry 0, and no other is"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn whatever_is_accepted_is_written_the_same_way(
        kind in 0..7_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = body(&all_kinds()[kind]).into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(b"\nunsigned\n");
        for seq in [Seq(0), Seq(5)] {
            if let Ok(signed) = SignedEntry::verify(&bytes, &Trust::AllowUnsigned, seq) {
                prop_assert_eq!(&SignedEntry::seal(&signed.entry, &Signer::Unsigned).unwrap(), &bytes);
            }
        }
    }
}
