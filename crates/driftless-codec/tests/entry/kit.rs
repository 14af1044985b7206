//! Keys and entries.

use driftless_codec::entry::{Role, SecretKey, SignedEntry, Signer, Trust, TrustedKeys};
use driftless_types::{
    AnchorRef, BlobRef, Entry, EntryKind, Genesis, ObjectDigest, Publication, RunId, Seq, StreamId, Version,
    WriterManifest, Writers,
};

pub(crate) fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(&[seed; 32])
}

pub(crate) fn trust(seed: u8) -> Trust {
    Trust::Keys(TrustedKeys::new(key(seed).public(), Role::Publisher))
}

pub(crate) const fn blob(byte: u8, bytes: u64) -> BlobRef {
    BlobRef { digest: ObjectDigest([byte; 32]), stored_bytes: bytes, raw_bytes: bytes }
}

pub(crate) fn publication() -> Publication {
    let writers = vec![
        WriterManifest { rank: 0, blobs: vec![blob(0xaa, 4096), blob(0xbb, 512)], nnz: 900 },
        WriterManifest { rank: 1, blobs: vec![], nnz: 0 },
    ];
    Publication {
        version: Version(12),
        writer_count: 2,
        writers: Writers::Inline(writers),
        digests: blob(0xcc, 160),
    }
}

/// An entry at place 5, or at place 0 if it is genesis.
pub(crate) fn entry(kind: EntryKind) -> Entry {
    let is_genesis = matches!(kind, EntryKind::Genesis(_));
    Entry {
        stream: StreamId([0x11; 16]),
        seq: Seq(if is_genesis { 0 } else { 5 }),
        epoch: 3,
        created_by: 0x0123_4567_89ab_cdef,
        parent: if is_genesis { ObjectDigest::ZERO } else { ObjectDigest([0x22; 32]) },
        kind,
    }
}

pub(crate) fn delta() -> Entry {
    entry(EntryKind::Delta { base_version: Version(11), publication: publication() })
}

/// One of each kind, and one whose writers are in a blob.
pub(crate) fn all_kinds() -> Vec<Entry> {
    let genesis = Genesis {
        run: RunId([7; 16]),
        digest_key: [7; 16],
        lease_ttl_s: 600,
        parameters: blob(1, 1000),
        model_config: blob(2, 700),
    };
    let anchors = vec![AnchorRef { seq: Seq(2), object: ObjectDigest([9; 32]) }];
    let in_blob = Publication { writers: Writers::Blob(blob(3, 2000)), ..publication() };
    vec![
        entry(EntryKind::Genesis(genesis)),
        entry(EntryKind::Epoch),
        entry(EntryKind::Anchor(publication())),
        entry(EntryKind::Anchor(in_blob)),
        delta(),
        entry(EntryKind::Retire { keep_from: Seq(2), anchors }),
        entry(EntryKind::Reset { version_below: Version(9) }),
    ]
}

/// An object with this body, signed by key 1.
pub(crate) fn object(body: &str) -> Vec<u8> {
    // Any entry's signature line shows how one looks; that of this body is made by the same key.
    let secret = ed25519_dalek::SigningKey::from_bytes(&[1; 32]);
    let message = [b"driftless log 1\n", body.as_bytes()].concat();
    let signature = ed25519_dalek::Signer::sign(&secret, &message).to_bytes();
    let digits: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{body}\ned25519 {} {digits}\n", key(1).public().id()).into_bytes()
}

/// The body of an entry, as text.
pub(crate) fn body(entry: &Entry) -> String {
    let object = SignedEntry::seal(entry, &Signer::Unsigned).expect("an entry");
    let text = String::from_utf8(object.to_vec()).expect("text");
    text.strip_suffix("\nunsigned\n").expect("unsigned").to_owned()
}
