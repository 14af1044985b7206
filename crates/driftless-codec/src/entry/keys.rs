//! Keys that sign entries, and the file that holds a secret one.

use super::error::EntryError;
use driftless_types::{Hex, KeyId};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use std::fmt;

const KEY_HEADER: &str = "driftless key 1";
/// What is signed begins with this, so that no signature is one of anything else.
const CONTEXT: &[u8] = b"driftless log 1\n";

/// An ed25519 public key that is not weak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// The key of these 32 bytes; `None` if they are no point of the curve, or one of small order.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Option<Self> {
        VerifyingKey::from_bytes(bytes).ok().filter(|key| !key.is_weak()).map(Self)
    }

    /// The 32 bytes of the key.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let digest = blake3::hash(self.0.as_bytes());
        KeyId(*digest.as_bytes().first_chunk().expect("a digest has 32 bytes"))
    }

    /// Whether this is the key's signature of an entry with this body, by the strict rules.
    pub(super) fn has_signed(&self, body: &[u8], signature: &[u8; 64]) -> bool {
        self.0.verify_strict(&message(body), &Signature::from_bytes(signature)).is_ok()
    }
}

/// An ed25519 secret key. It is wiped from memory when it is dropped, and never printed by `Debug`.
#[derive(Clone)]
pub struct SecretKey(Box<SigningKey>);

impl SecretKey {
    /// The key of a seed: 32 bytes from the operating system's generator.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Box::new(SigningKey::from_bytes(seed)))
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Reads a key file: `driftless key 1`, then the seed as 64 lower-case hexadecimal digits, each on a line.
    ///
    /// # Errors
    /// The line that is wrong. What it holds is not part of the message.
    pub fn parse_file(text: &str) -> Result<Self, EntryError> {
        let wrong = |line, expected| EntryError::KeyLine { what: "key file", line, expected };
        let mut lines = text.lines();
        if lines.next() != Some(KEY_HEADER) {
            return Err(wrong(1, "\"driftless key 1\""));
        }
        let seed = lines.next().and_then(Hex::parse);
        let seed = seed.ok_or_else(|| wrong(2, "a seed of 64 lower-case hexadecimal digits"))?;
        if lines.next().is_some() {
            return Err(wrong(3, "the end of the file"));
        }
        Ok(Self::from_seed(&seed))
    }

    /// The key file of this key. Whoever writes it lets nobody else read it.
    #[must_use]
    pub fn print_file(&self) -> String {
        format!("{KEY_HEADER}\n{}\n", Hex(self.0.as_bytes()))
    }

    pub(super) fn sign(&self, body: &[u8]) -> [u8; 64] {
        self.0.sign(&message(body)).to_bytes()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretKey").field(&self.public().id()).finish()
    }
}

/// Who signs entries.
#[derive(Clone, Debug)]
pub enum Signer {
    /// This key.
    Key(SecretKey),
    /// Nobody: a reader takes such entries only if it is told to.
    Unsigned,
}

impl Signer {
    /// The name of the key that signs; `None` if none does.
    #[must_use]
    pub fn key(&self) -> Option<KeyId> {
        match self {
            Self::Key(key) => Some(key.public().id()),
            Self::Unsigned => None,
        }
    }
}

fn message(body: &[u8]) -> Vec<u8> {
    [CONTEXT, body].concat()
}
