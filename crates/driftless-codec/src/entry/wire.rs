//! Parts of bodies as JSON, and canonical JSON itself (RFC 8785: keys in order, no white space).

use super::error::EntryError;
use super::hex::{HexBytes, Integer};
use driftless_types::{AnchorRef, BlobRef, ObjectDigest, Seq, WriterManifest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Blob {
    digest: HexBytes<32>,
    stored_bytes: Integer,
    raw_bytes: Integer,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    rank: u32,
    blobs: Vec<Blob>,
    nnz: Integer,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Anchor {
    seq: Integer,
    object: HexBytes<32>,
}

/// Canonical JSON of something without floats, whose integers are below 2^53.
pub(super) fn canonical(value: &impl Serialize) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("plain data has canonical JSON")
}

/// What this JSON says. Whether it is canonical is for the caller to compare.
pub(super) fn parse<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, EntryError> {
    serde_json::from_slice(bytes).map_err(|error| EntryError::Json { what, reason: error.to_string() })
}

impl From<&BlobRef> for Blob {
    fn from(blob: &BlobRef) -> Self {
        Self {
            digest: HexBytes(blob.digest.0),
            stored_bytes: Integer(blob.stored_bytes),
            raw_bytes: Integer(blob.raw_bytes),
        }
    }
}

impl From<Blob> for BlobRef {
    fn from(blob: Blob) -> Self {
        Self {
            digest: ObjectDigest(blob.digest.0),
            stored_bytes: blob.stored_bytes.0,
            raw_bytes: blob.raw_bytes.0,
        }
    }
}

impl From<&WriterManifest> for Manifest {
    fn from(manifest: &WriterManifest) -> Self {
        Self {
            rank: manifest.rank,
            blobs: manifest.blobs.iter().map(Blob::from).collect(),
            nnz: Integer(manifest.nnz),
        }
    }
}

impl From<Manifest> for WriterManifest {
    fn from(manifest: Manifest) -> Self {
        Self {
            rank: manifest.rank,
            blobs: manifest.blobs.into_iter().map(Into::into).collect(),
            nnz: manifest.nnz.0,
        }
    }
}

impl From<&AnchorRef> for Anchor {
    fn from(anchor: &AnchorRef) -> Self {
        Self { seq: Integer(anchor.seq.0), object: HexBytes(anchor.object.0) }
    }
}

impl From<Anchor> for AnchorRef {
    fn from(anchor: Anchor) -> Self {
        Self { seq: Seq(anchor.seq.0), object: ObjectDigest(anchor.object.0) }
    }
}
