//! What can be wrong with an entry, a key file or a trust file.

use super::trust::Role;
use driftless_types::{KeyId, Retry, Seq};
use thiserror::Error;

/// Why an entry, or a file of keys, was refused. Nothing of it is believed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EntryError {
    /// More bytes than an entry may have.
    #[error(
        "the entry has {found} bytes, expected at most {most}: put the manifests of its writers into a blob"
    )]
    TooLarge {
        /// Its bytes.
        found: u64,
        /// The cap.
        most: u64,
    },
    /// The bytes are not a line of body and a line of signature.
    #[error("the entry is not a line of JSON and a line of signature: {what}")]
    Lines {
        /// What is missing.
        what: &'static str,
    },
    /// No signature where one is demanded.
    #[error("the entry is unsigned, expected a signature of a trusted key")]
    Unsigned,
    /// A signature of a key that is not trusted.
    #[error(
        "the entry is signed by key {key}, which is not trusted: add it to the trust file if it should be"
    )]
    UnknownKey {
        /// The id in the signature.
        key: KeyId,
    },
    /// A signature of a key that is trusted for something else.
    #[error("the entry is signed by key {key}, which is trusted as {found}, expected {expected}")]
    WrongRole {
        /// The id in the signature.
        key: KeyId,
        /// The role in the trust file.
        found: Role,
        /// The role that the entry takes.
        expected: Role,
    },
    /// A signature that is not that of these bytes.
    #[error("the signature of key {key} does not belong to the entry")]
    Forged {
        /// The id in the signature.
        key: KeyId,
    },
    /// The body is not JSON of the fields that this version knows.
    #[error("the {what} cannot be read: {reason}")]
    Json {
        /// What was being read.
        what: &'static str,
        /// Where and why, in the words of the parser.
        reason: String,
    },
    /// The same fields are written in another way by the format.
    #[error("the {what} is not canonical: encoding its fields again gives other bytes")]
    NotCanonical {
        /// What was being read.
        what: &'static str,
    },
    /// A format that this version does not know.
    #[error("the format of the entry is {found}, expected {expected}")]
    Format {
        /// The format.
        found: u32,
        /// The one that this version knows.
        expected: u32,
    },
    /// A kind that this version does not know.
    #[error("the kind of the entry is {found:?}, which this version of the format does not define")]
    UnknownKind {
        /// The kind.
        found: String,
    },
    /// A field that an entry of this kind must have.
    #[error("an entry of kind {kind} has no {field}")]
    MissingField {
        /// The kind.
        kind: String,
        /// The field.
        field: &'static str,
    },
    /// Another place than that of its key.
    #[error("the entry says that it is entry {found}, expected {expected}, where it was found")]
    WrongPlace {
        /// The place in the entry.
        found: Seq,
        /// The place of its key.
        expected: Seq,
    },
    /// Genesis anywhere but at place 0, or another kind there.
    #[error("an entry of kind {kind} at place {seq}: genesis is entry 0, and no other is")]
    Genesis {
        /// The kind.
        kind: &'static str,
        /// The place.
        seq: Seq,
    },
    /// A parent where there is none, or none where there is one.
    #[error("entry {seq} names a parent of {digits}: only that of genesis is zero")]
    Parent {
        /// The place.
        seq: Seq,
        /// How its parent was found.
        digits: &'static str,
    },
    /// More of something than the format allows.
    #[error("the number of {what} is {found}, expected at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many are allowed.
        most: u64,
    },
    /// A number that the format cannot carry.
    #[error("the {what} is {found}, expected less than 2^53")]
    TooGreat {
        /// Which.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// A number that does not follow from the others.
    #[error("the {what} is {found}, expected {expected}")]
    Mismatch {
        /// Which.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// A delta that does not lead forward.
    #[error("a delta from version {base} to version {version}, expected a later one")]
    Backward {
        /// The base.
        base: u64,
        /// The version.
        version: u64,
    },
    /// A parameter whose name is empty or too long, or does not come after the one before it in byte order.
    #[error(
        "parameter {index} has a name of {bytes} bytes, expected 1 to {most}, each after the one before it"
    )]
    Name {
        /// The parameter.
        index: usize,
        /// The length of its name.
        bytes: usize,
        /// The greatest length.
        most: usize,
    },
    /// A line of a key file or of a trust file that is none.
    #[error("line {line} of the {what} is not one: expected {expected}")]
    KeyLine {
        /// Which file.
        what: &'static str,
        /// The line, counted from 1.
        line: usize,
        /// What belongs there.
        expected: &'static str,
    },
}

impl EntryError {
    /// What was refused once is refused again.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        Retry::Never
    }
}
