//! A stream of log entries and blobs under one prefix of any object store.
//!
//! The store is whatever implements [`object_store::ObjectStore`]; this crate adds the keys, the bounds, the
//! deadlines, the repetitions and the errors that a log needs.
//!
//! - **LG-2.** Keys of the log and of blobs never change their content; `lease/` and `head` are overwritten.
//! - **LG-3.** An entry is created only after every blob that it names was put and its length seen.
//! - **LG-10.** No decision compares clocks of two machines.
//! - **LG-12.** The store's client sends the request for an entry once.
#![forbid(unsafe_code)]

mod address;
mod blob;
mod call;
mod classify;
pub mod conformance;
mod error;
pub mod faulty;
mod key;
mod lease;
mod local;
mod log;
mod open;
mod options;
mod stream;

pub use address::StreamUrl;
pub use blob::StoredBlob;
pub use error::{Cause, StoreError};
pub use key::{NotHex, ReaderId};
pub use lease::{LEASES_MAX, Lease};
pub use log::ENTRY_BYTES_MAX;
pub use object_store;
pub use open::{create, open};
pub use options::{BLOB_BYTES_MAX, StoreOptions};
pub use stream::Stream;
