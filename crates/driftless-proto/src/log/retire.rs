//! The collector of a stream.

mod words;

pub use words::{BlobKey, RetireCommand, RetireEvent, RetireMode, RetireOptions, RetireStop};
