//! The keys of a stream. They are built from numbers and hex digests only, never from data, and what a listing
//! names is read back by the same rules: a name that no rule makes is none of ours.

use driftless_types::{Hex, ObjectDigest, Seq};
use object_store::path::Path;
use std::fmt;
use std::str::FromStr;

/// Digits of a number in a key, so that the order of names is that of the numbers.
const DIGITS: usize = 20;

/// The last place that a log can have: numbers in formats stay below 2^53.
pub(crate) const SEQ_MAX: u64 = (1 << 53) - 1;

/// A reader that pins what it needs, as 16 random bytes that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub [u8; 16]);

impl fmt::Display for ReaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

impl FromStr for ReaderId {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        Hex::parse(text).map(Self).ok_or(NotHex)
    }
}

/// Not 32 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 lower-case hex digits")]
pub struct NotHex;

/// The folders of a stream under its prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Path,
}

impl Keys {
    pub(crate) const fn new(prefix: Path) -> Self {
        Self { prefix }
    }

    pub(crate) const fn prefix(&self) -> &Path {
        &self.prefix
    }

    pub(crate) fn log(&self) -> Path {
        self.prefix.clone().join("log")
    }

    pub(crate) fn entry(&self, seq: Seq) -> Path {
        self.log().join(number(seq.0))
    }

    pub(crate) fn blobs(&self) -> Path {
        self.prefix.clone().join("blob")
    }

    pub(crate) fn blob(&self, epoch: u64, digest: &ObjectDigest) -> Path {
        self.blobs().join(number(epoch)).join(digest.to_string())
    }

    pub(crate) fn leases(&self) -> Path {
        self.prefix.clone().join("lease")
    }

    pub(crate) fn lease(&self, reader: ReaderId) -> Path {
        self.leases().join(reader.to_string())
    }

    pub(crate) fn head(&self) -> Path {
        self.prefix.clone().join("head")
    }

    pub(crate) fn probe(&self, random: &[u8; 16]) -> Path {
        self.prefix.clone().join("probe").join(Hex(random).to_string())
    }

    /// The place that a key of the log names.
    pub(crate) fn parse_entry(&self, key: &Path) -> Option<Seq> {
        let [name] = names_below(key, &self.log())?;
        from_number(&name).filter(|&number| number <= SEQ_MAX).map(Seq)
    }

    /// The epoch and digest that a key of a blob names.
    pub(crate) fn parse_blob(&self, key: &Path) -> Option<(u64, ObjectDigest)> {
        let [epoch, digest] = names_below(key, &self.blobs())?;
        Some((from_number(&epoch)?, ObjectDigest(Hex::parse(&digest)?)))
    }

    /// The epoch that the name of a folder of blobs names.
    pub(crate) fn parse_epoch(name: &str) -> Option<u64> {
        from_number(name)
    }

    /// The reader that a key of a lease names.
    pub(crate) fn parse_lease(&self, key: &Path) -> Option<ReaderId> {
        let [name] = names_below(key, &self.leases())?;
        name.parse().ok()
    }
}

/// The names of a key below a folder, if there are exactly as many.
fn names_below<const COUNT: usize>(key: &Path, folder: &Path) -> Option<[String; COUNT]> {
    let names: Vec<_> = key.prefix_match(folder)?.map(|part| part.as_ref().to_owned()).collect();
    names.try_into().ok()
}

fn number(value: u64) -> String {
    format!("{value:0DIGITS$}")
}

fn from_number(text: &str) -> Option<u64> {
    let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        let keys = Keys::new(Path::from("a/b"));
        assert_eq!(keys.entry(Seq(42)).as_ref(), "a/b/log/00000000000000000042");
        assert_eq!(keys.parse_entry(&keys.entry(Seq(SEQ_MAX))), Some(Seq(SEQ_MAX)));
        let digest = ObjectDigest([0xab; 32]);
        assert_eq!(keys.parse_blob(&keys.blob(7, &digest)), Some((7, digest)));
        let reader = ReaderId([0x5c; 16]);
        assert_eq!(keys.parse_lease(&keys.lease(reader)), Some(reader));
        let root = Keys::new(Path::default());
        assert_eq!(root.entry(Seq(1)).as_ref(), "log/00000000000000000001");
        assert_eq!(root.head().as_ref(), "head");
    }

    #[test]
    fn names_that_no_rule_makes_are_none_of_ours() {
        let keys = Keys::new(Path::from("a"));
        for foreign in [
            "a/log/1",
            "a/log/18446744073709551615",
            "a/log/0000000000000000004x",
            "a/log/99999999999999999999",
            "a/log/+0000000000000000001",
            "a/log/00000000000000000001/x",
            "b/log/00000000000000000001",
            "a/log",
        ] {
            assert_eq!(keys.parse_entry(&Path::from(foreign)), None, "{foreign}");
        }
        let upper = format!("a/blob/{:020}/{}", 1, "AB".repeat(32));
        assert_eq!(keys.parse_blob(&Path::from(upper)), None);
        let short = format!("a/blob/{:020}/{}", 1, "ab".repeat(31));
        assert_eq!(keys.parse_blob(&Path::from(short)), None);
    }
}
