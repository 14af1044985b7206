//! Bounds of entries: writers keep them, and readers refuse what does not.

use super::error::EntryError;
use super::hex::INTEGER_END;
use driftless_types::{
    BlobRef, Entry, EntryKind, Genesis, ObjectDigest, Publication, WriterManifest, Writers,
};

/// The most writers of a version.
pub const MAX_WRITERS: u64 = 65_536;
/// The most anchors that a `retire` names.
pub const MAX_ANCHORS: u64 = 16;
/// The most bytes of one blob of sections.
pub const MAX_BLOB_BYTES: u64 = 64 << 20;

/// Checks all that an entry must hold by itself, without the log before it.
pub(super) fn check(entry: &Entry) -> Result<(), EntryError> {
    check_place(entry)?;
    integer("epoch", entry.epoch)?;
    integer("place of the entry", entry.seq.0)?;
    match &entry.kind {
        EntryKind::Epoch => Ok(()),
        EntryKind::Genesis(genesis) => check_genesis(genesis),
        EntryKind::Anchor(publication) => check_publication(publication),
        EntryKind::Delta { base_version, publication } => {
            let (base, version) = (base_version.0, publication.version.0);
            if base >= version {
                return Err(EntryError::Backward { base, version });
            }
            check_publication(publication)
        }
        EntryKind::Retire { keep_from, anchors } => {
            integer("first entry that is kept", keep_from.0)?;
            at_most("anchors", anchors.len() as u64, MAX_ANCHORS)?;
            anchors.iter().try_for_each(|anchor| integer("place of an anchor", anchor.seq.0))
        }
        EntryKind::Reset { version_below } => integer("bound of the version", version_below.0),
    }
}

/// Genesis is entry 0 and has no parent; every other entry has one.
fn check_place(entry: &Entry) -> Result<(), EntryError> {
    let is_first = entry.seq.0 == 0;
    if is_first != matches!(entry.kind, EntryKind::Genesis(_)) {
        return Err(EntryError::Genesis { kind: entry.kind.name(), seq: entry.seq });
    }
    if is_first != (entry.parent == ObjectDigest::ZERO) {
        let digits = if is_first { "other digits" } else { "zeros" };
        return Err(EntryError::Parent { seq: entry.seq, digits });
    }
    Ok(())
}

fn check_genesis(genesis: &Genesis) -> Result<(), EntryError> {
    integer("lifetime of a lease", genesis.lease_ttl_s)?;
    check_blob(&genesis.parameters, INTEGER_END)?;
    check_blob(&genesis.model_config, INTEGER_END)
}

fn check_publication(publication: &Publication) -> Result<(), EntryError> {
    integer("version", publication.version.0)?;
    at_most("writers", publication.writer_count.into(), MAX_WRITERS)?;
    check_blob(&publication.digests, INTEGER_END)?;
    match &publication.writers {
        Writers::Inline(manifests) => check_manifests(manifests, publication.writer_count),
        Writers::Blob(blob) => check_blob(blob, MAX_BLOB_BYTES),
    }
}

/// Checks that every writer of the plan is there exactly once, in order of rank.
pub(super) fn check_manifests(manifests: &[WriterManifest], count: u32) -> Result<(), EntryError> {
    let (found, expected) = (manifests.len() as u64, u64::from(count));
    if found != expected {
        return Err(EntryError::Mismatch { what: "number of writers", found, expected });
    }
    for (expected, manifest) in (0_u64..).zip(manifests) {
        let found = u64::from(manifest.rank);
        if found != expected {
            return Err(EntryError::Mismatch { what: "rank of a writer", found, expected });
        }
        integer("number of changes", manifest.nnz)?;
        manifest.blobs.iter().try_for_each(|blob| check_blob(blob, MAX_BLOB_BYTES))?;
    }
    Ok(())
}

/// Blobs are stored as they are in this version, so nothing grows when it is read.
fn check_blob(blob: &BlobRef, most: u64) -> Result<(), EntryError> {
    integer("length of a blob", blob.stored_bytes)?;
    at_most("bytes of a blob", blob.stored_bytes, most)?;
    let (found, expected) = (blob.raw_bytes, blob.stored_bytes);
    if found != expected {
        return Err(EntryError::Mismatch { what: "raw length of a blob", found, expected });
    }
    Ok(())
}

const fn integer(what: &'static str, found: u64) -> Result<(), EntryError> {
    if found >= INTEGER_END {
        return Err(EntryError::TooGreat { what, found });
    }
    Ok(())
}

pub(super) const fn at_most(what: &'static str, found: u64, most: u64) -> Result<(), EntryError> {
    if found > most {
        return Err(EntryError::TooMany { what, found, most });
    }
    Ok(())
}
