//! The line of JSON: which fields each kind has, and the one way in which they are written.

use super::check::check;
use super::error::EntryError;
use super::hex::{HexBytes, Integer};
use super::wire::{Anchor, Blob, Manifest, canonical, parse};
use driftless_types::{
    Entry, EntryKind, Genesis, ObjectDigest, Publication, RunId, Seq, StreamId, Version, Writers,
};
use serde::{Deserialize, Serialize};

const FORMAT: u32 = 1;
const WHAT: &str = "entry";

/// All fields of all kinds. Those that a kind does not have are not written; and since what is read is encoded again
/// and compared, they cannot be read either, nor can a null.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Body {
    format: u32,
    stream: HexBytes<16>,
    seq: Integer,
    epoch: Integer,
    parent: HexBytes<32>,
    kind: String,
    created_by: HexBytes<8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<HexBytes<16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest_key: Option<HexBytes<16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ttl_s: Option<Integer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Blob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_config: Option<Blob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<Integer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_version: Option<Integer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writer_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writers: Option<Vec<Manifest>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writers_blob: Option<Blob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digests: Option<Blob>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_from: Option<Integer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anchors: Option<Vec<Anchor>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version_below: Option<Integer>,
}

/// The body of an entry, without the line feed.
///
/// # Errors
/// What [`check`] says.
pub(super) fn encode(entry: &Entry) -> Result<Vec<u8>, EntryError> {
    check(entry)?;
    Ok(canonical(&Body::of(entry)))
}

/// The entry of a body.
///
/// # Errors
/// JSON that is not of these fields, or not canonical, and what [`check`] says.
pub(super) fn decode(bytes: &[u8]) -> Result<Entry, EntryError> {
    let body: Body = parse(WHAT, bytes)?;
    if body.format != FORMAT {
        return Err(EntryError::Format { found: body.format, expected: FORMAT });
    }
    let entry = body.into_entry()?;
    check(&entry)?;
    if canonical(&Body::of(&entry)) != bytes {
        return Err(EntryError::NotCanonical { what: WHAT });
    }
    Ok(entry)
}

impl Body {
    fn of(entry: &Entry) -> Self {
        let common = Self {
            format: FORMAT,
            stream: HexBytes(entry.stream.0),
            seq: Integer(entry.seq.0),
            epoch: Integer(entry.epoch),
            parent: HexBytes(entry.parent.0),
            kind: entry.kind.name().to_owned(),
            created_by: HexBytes(entry.created_by.to_be_bytes()),
            ..Self::default()
        };
        match &entry.kind {
            EntryKind::Epoch => common,
            EntryKind::Genesis(genesis) => common.with_genesis(genesis),
            EntryKind::Anchor(publication) => common.with_publication(publication),
            EntryKind::Delta { base_version, publication } => {
                Self { base_version: Some(Integer(base_version.0)), ..common.with_publication(publication) }
            }
            EntryKind::Retire { keep_from, anchors } => Self {
                keep_from: Some(Integer(keep_from.0)),
                anchors: Some(anchors.iter().map(Anchor::from).collect()),
                ..common
            },
            EntryKind::Reset { version_below } => {
                Self { version_below: Some(Integer(version_below.0)), ..common }
            }
        }
    }

    fn with_genesis(self, genesis: &Genesis) -> Self {
        Self {
            run: Some(HexBytes(genesis.run.0)),
            digest_key: Some(HexBytes(genesis.digest_key)),
            lease_ttl_s: Some(Integer(genesis.lease_ttl_s)),
            parameters: Some((&genesis.parameters).into()),
            model_config: Some((&genesis.model_config).into()),
            ..self
        }
    }

    fn with_publication(self, publication: &Publication) -> Self {
        let (writers, writers_blob) = match &publication.writers {
            Writers::Inline(manifests) => (Some(manifests.iter().map(Manifest::from).collect()), None),
            Writers::Blob(blob) => (None, Some(blob.into())),
        };
        Self {
            version: Some(Integer(publication.version.0)),
            writer_count: Some(publication.writer_count),
            writers,
            writers_blob,
            digests: Some((&publication.digests).into()),
            ..self
        }
    }

    fn into_entry(self) -> Result<Entry, EntryError> {
        Ok(Entry {
            stream: StreamId(self.stream.0),
            seq: Seq(self.seq.0),
            epoch: self.epoch.0,
            created_by: u64::from_be_bytes(self.created_by.0),
            parent: ObjectDigest(self.parent.0),
            kind: self.into_kind()?,
        })
    }

    fn into_kind(self) -> Result<EntryKind, EntryError> {
        let missing = |field| EntryError::MissingField { kind: self.kind.clone(), field };
        let integer =
            |value: Option<Integer>, field| value.map(|value| value.0).ok_or_else(|| missing(field));
        let blob = |value: Option<Blob>, field| value.map(Into::into).ok_or_else(|| missing(field));
        let bytes =
            |value: Option<HexBytes<16>>, field| value.map(|value| value.0).ok_or_else(|| missing(field));
        let publication = |writers: Option<Vec<Manifest>>| {
            let inline =
                writers.map(|writers| Writers::Inline(writers.into_iter().map(Into::into).collect()));
            let writers = inline.or_else(|| self.writers_blob.map(|blob| Writers::Blob(blob.into())));
            Ok(Publication {
                version: Version(integer(self.version, "version")?),
                writer_count: self.writer_count.ok_or_else(|| missing("writer_count"))?,
                writers: writers.ok_or_else(|| missing("writers"))?,
                digests: blob(self.digests, "digests")?,
            })
        };
        match self.kind.as_str() {
            "epoch" => Ok(EntryKind::Epoch),
            "genesis" => Ok(EntryKind::Genesis(Genesis {
                run: RunId(bytes(self.run, "run")?),
                digest_key: bytes(self.digest_key, "digest_key")?,
                lease_ttl_s: integer(self.lease_ttl_s, "lease_ttl_s")?,
                parameters: blob(self.parameters, "parameters")?,
                model_config: blob(self.model_config, "model_config")?,
            })),
            "anchor" => publication(self.writers).map(EntryKind::Anchor),
            "delta" => Ok(EntryKind::Delta {
                base_version: Version(integer(self.base_version, "base_version")?),
                publication: publication(self.writers)?,
            }),
            "retire" => Ok(EntryKind::Retire {
                keep_from: Seq(integer(self.keep_from, "keep_from")?),
                anchors: self
                    .anchors
                    .ok_or_else(|| missing("anchors"))?
                    .into_iter()
                    .map(Into::into)
                    .collect(),
            }),
            "reset" => {
                Ok(EntryKind::Reset { version_below: Version(integer(self.version_below, "version_below")?) })
            }
            found => Err(EntryError::UnknownKind { found: found.to_owned() }),
        }
    }
}
