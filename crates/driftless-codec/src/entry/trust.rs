//! Whom a reader believes, and the file that says so.

use super::error::EntryError;
use super::keys::PublicKey;
use driftless_types::{Hex, KeyId};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

const TRUST_HEADER: &str = "driftless trust 1";

/// What a key may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Entries of the log itself.
    Publisher,
    /// Derived anchors and merged deltas beside it.
    Archivist,
}

impl Role {
    const ALL: [Self; 2] = [Self::Publisher, Self::Archivist];

    const fn name(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Archivist => "archivist",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Keys that are trusted, each in one role. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKeys(BTreeMap<KeyId, (PublicKey, Role)>);

impl TrustedKeys {
    /// One key.
    #[must_use]
    pub fn new(key: PublicKey, role: Role) -> Self {
        Self(BTreeMap::from([(key.id(), (key, role))]))
    }

    /// Adds a key, or gives one another role.
    pub fn trust(&mut self, key: PublicKey, role: Role) {
        self.0.insert(key.id(), (key, role));
    }

    /// The key of this name and its role.
    #[must_use]
    pub fn find(&self, id: KeyId) -> Option<(PublicKey, Role)> {
        self.0.get(&id).copied()
    }

    /// Reads a trust file: `driftless trust 1`, then a line `<role> <key id> <public key>` for each key. Empty lines and
    /// those that begin with `#` mean nothing.
    ///
    /// # Errors
    /// The line that is wrong: an unknown role, a key that is none, an id that is not that of the key, a key that comes
    /// twice, or no key at all.
    pub fn parse_file(text: &str) -> Result<Self, EntryError> {
        let wrong = |line, expected| EntryError::KeyLine { what: "trust file", line, expected };
        let mut lines = (1..).zip(text.lines());
        if lines.next().is_none_or(|(_, line)| line != TRUST_HEADER) {
            return Err(wrong(1, "\"driftless trust 1\""));
        }
        let (mut keys, mut end) = (BTreeMap::new(), 2);
        for (number, line) in lines {
            end = number + 1;
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, key, role) = parse_line(line).ok_or_else(|| {
                wrong(number, "a role, the id of a key, and the key, as keygen writes them")
            })?;
            if keys.insert(id, (key, role)).is_some() {
                return Err(wrong(number, "another key than those before"));
            }
        }
        if keys.is_empty() {
            return Err(wrong(end, "at least one key"));
        }
        Ok(Self(keys))
    }

    /// The trust file of these keys.
    #[must_use]
    pub fn print_file(&self) -> String {
        let mut text = format!("{TRUST_HEADER}\n");
        for (id, (key, role)) in &self.0 {
            writeln!(text, "{role} {id} {}", Hex(&key.to_bytes())).expect("a string takes every line");
        }
        text
    }
}

fn parse_line(line: &str) -> Option<(KeyId, PublicKey, Role)> {
    let mut words = line.split(' ');
    let (role, id, key) = (words.next()?, words.next()?, words.next()?);
    let role = Role::ALL.into_iter().find(|known| known.name() == role)?;
    let key = PublicKey::from_bytes(&Hex::parse(key)?)?;
    let is_named = Hex::parse(id).map(KeyId) == Some(key.id());
    (words.next().is_none() && is_named).then(|| (key.id(), key, role))
}

/// What a reader believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Entries signed by these keys, and no others.
    Keys(TrustedKeys),
    /// Everything that is well formed, signatures unchecked: for a store that only friends can write.
    AllowUnsigned,
}
