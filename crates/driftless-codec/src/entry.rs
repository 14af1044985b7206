//! Entries of a log as bytes: one line of canonical JSON and one of signature.
//!
//! What is read is believed in this order, and not before: the size, the signature over the stored bytes, the fields
//! and their bounds, that encoding them again gives the same bytes, the place. No key is ever taken from data.

mod body;
mod check;
mod error;
mod hex;
mod keys;
mod signed;
mod tables;
mod trust;
mod wire;

pub use check::{MAX_ANCHORS, MAX_BLOB_BYTES, MAX_WRITERS};
pub use error::EntryError;
pub use keys::{PublicKey, SecretKey, Signer};
pub use signed::{MAX_ENTRY_BYTES, SignedEntry, object_digest};
pub use tables::{
    MAX_NAME_BYTES, MAX_PARAMETERS, Parameter, decode_parameters, decode_writers, encode_parameters,
    encode_writers,
};
pub use trust::{Role, Trust, TrustedKeys};
