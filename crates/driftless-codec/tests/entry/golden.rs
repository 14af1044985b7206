//! The bytes that FORMAT.md shows, made by other implementations of ed25519, BLAKE3 and JSON.

use crate::kit::{entry, key, trust};
use driftless_codec::entry::{Role, SignedEntry, Signer, TrustedKeys};
use driftless_types::{EntryKind, Seq};

const FORMAT: &str = include_str!("../../FORMAT.md");

/// The lines of the code block of FORMAT.md that begins with this text.
fn block(start: &str) -> String {
    let (_, rest) = FORMAT.split_once(&format!("```text\n{start}")).expect("the block is there");
    let (rest, _) = rest.split_once("```").expect("the block ends");
    format!("{start}{rest}")
}

#[test]
fn the_entry_of_the_page_is_these_bytes() {
    let object = SignedEntry::seal(&entry(EntryKind::Epoch), &Signer::Key(key(1))).unwrap();
    assert_eq!(block("{\"created_by\""), String::from_utf8(object.to_vec()).unwrap());
    let signed = SignedEntry::verify(&object, &trust(1), Seq(5)).unwrap();
    assert!(FORMAT.contains(&signed.object.to_string()), "{}", signed.object);
}

#[test]
fn the_files_of_keys_of_the_page_are_these_bytes() {
    assert_eq!(block("driftless key 1\n"), key(1).print_file());
    assert_eq!(block("driftless trust 1\n"), TrustedKeys::new(key(1).public(), Role::Publisher).print_file());
}
