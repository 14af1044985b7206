//! A stream of log entries and blobs under one prefix of any object store.
//!
//! The store is whatever implements [`object_store::ObjectStore`]; there is no trait of our own. What this crate adds
//! is what a log needs of a store: keys, bounds, deadlines, repetitions, and errors that say what to do.
//!
//! ```text
//! log/<seq, 20 digits>                       created only if absent: one winner per place
//! blob/<epoch counter, 20 digits>/<BLAKE3>   put before the entry that names it
//! lease/<reader, 32 hex digits>              {"counter":3,"pinned":17}, overwritten while the reader lives
//! probe/<32 hex digits>                      created twice, to see that a second create is refused
//! head                                       a hint in decimal; may be stale, missing or a lie
//! ```
//!
//! [`open`] leads from a [`StreamUrl`] to a [`Stream`], [`create`] does the same for a new one. The only primitive
//! required is *create if absent* (S3 `If-None-Match: *`, GCS, Azure, a hard link on a local disk), and
//! [`Stream::probe_create_if_absent`] proves it on the store at hand.
//!
//! # What the store keeps of the log's promises
//! - **LG-2.** Keys of the log and of blobs never change their content: an entry is created only if absent, and a
//!   blob's key names its bytes. `lease/` and `head` are overwritten.
//! - **LG-3.** A blob counts as put once its length was seen in the store, and [`Stream::see_blobs`] sees those that
//!   others put, so that an entry is created only after every blob that it names. On a local disk file and folders
//!   are synced before a put is reported, and before an entry that was read is handed out: the data before it has a
//!   name, then the folder of the name, then every folder above it up to the root.
//! - **LG-9.** A collector lists and deletes blobs by epoch; [`Stream::delete_staged`] does the same for what puts that
//!   were cut short left on a local disk.
//! - **LG-10.** No decision compares clocks of two machines: a lease has a counter and no time, the times that stores
//!   attach to objects are never read, and every wait is on the own clock.
//! - **LG-12.** The request for an entry is sent once; the store client's own retries are off. After any error nothing
//!   is settled before the place was read back. A place is said to be empty only after its folder was listed.
//!
//! # Errors and repetitions
//! [`StoreError`] tells missing from refused, full from read-only, and throttled from down; [`StoreError::retry`] says
//! what has to change. Idempotent requests (blobs, leases, listings, reads, deletes) are repeated at most
//! [`StoreOptions::attempts`] times, with pauses that double and are drawn at random; each has a deadline.
//!
//! # A bucket is not trusted
//! Keys are built from numbers and digests and parsed back by the same rules: a listed name that no rule makes is none
//! of ours. Blobs are read up to their stated length and no further, and checked by length and digest. Listings,
//! leases and the hint are bounded. What an entry says is for its reader to verify before anything is parsed.
//!
//! # For tests of whoever builds on this
//! [`faulty`] has decorators that fail on purpose; [`conformance`] is a suite that runs on any store.
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
