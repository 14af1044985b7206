//! The whole object: a line of body, a line of signature.

use super::body;
use super::error::EntryError;
use super::keys::Signer;
use super::trust::{Role, Trust};
use bytes::Bytes;
use driftless_types::{Entry, Hex, KeyId, ObjectDigest, Seq};

/// The most bytes of an entry's object.
pub const MAX_ENTRY_BYTES: usize = 1 << 20;

const UNSIGNED: &str = "unsigned";
const ALGORITHM: &str = "ed25519";

/// An entry that was verified.
///
/// ```
/// use driftless_codec::entry::{Role, SecretKey, SignedEntry, Signer, Trust, TrustedKeys};
/// use driftless_types::{Entry, EntryKind, ObjectDigest, Seq, StreamId};
///
/// let entry = Entry {
///     stream: StreamId([7; 16]),
///     seq: Seq(5),
///     epoch: 3,
///     created_by: 0x0123_4567_89ab_cdef,
///     parent: ObjectDigest([1; 32]),
///     kind: EntryKind::Epoch,
/// };
/// let key = SecretKey::from_seed(&[9; 32]);
/// let trust = Trust::Keys(TrustedKeys::new(key.public(), Role::Publisher));
/// let object = SignedEntry::seal(&entry, &Signer::Key(key))?;
/// let signed = SignedEntry::verify(&object, &trust, Seq(5))?;
/// assert_eq!(signed.entry, entry);
/// # Ok::<(), driftless_codec::entry::EntryError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedEntry {
    /// What it says.
    pub entry: Entry,
    /// The digest of its object: the next entry's parent.
    pub object: ObjectDigest,
    /// The key that its signature names; `None` if it is unsigned. Checked, unless unsigned entries are believed too.
    pub key: Option<KeyId>,
}

impl SignedEntry {
    /// The object of an entry. The same entry and key give the same bytes each time.
    ///
    /// # Errors
    /// An entry that the format cannot carry: one that [`Self::verify`] would refuse. [`EntryError::TooLarge`] asks for
    /// the manifests in a blob.
    pub fn seal(entry: &Entry, signer: &Signer) -> Result<Bytes, EntryError> {
        let mut object = body::encode(entry)?;
        let signature = match signer {
            Signer::Key(key) => {
                let signature = key.sign(&object);
                format!("\n{ALGORITHM} {} {}\n", key.public().id(), Hex(&signature))
            }
            Signer::Unsigned => format!("\n{UNSIGNED}\n"),
        };
        object.extend(signature.into_bytes());
        check_size(&object)?;
        Ok(object.into())
    }

    /// Reads the object that was found at a place of the log.
    ///
    /// # Errors
    /// In this order: the size, a signature that is missing or not that of a publisher's key over these very bytes,
    /// fields that are missing, unknown or out of bounds, bytes that are not canonical, another place.
    pub fn verify(object: &[u8], trust: &Trust, expected: Seq) -> Result<Self, EntryError> {
        check_size(object)?;
        let (body, signature) = lines(object)?;
        let key = check_signature(body, signature, trust)?;
        let entry = body::decode(body)?;
        if entry.seq != expected {
            return Err(EntryError::WrongPlace { found: entry.seq, expected });
        }
        Ok(Self { entry, object: object_digest(object), key })
    }
}

/// The digest by which an object is named: BLAKE3 of all its bytes.
#[must_use]
pub fn object_digest(object: &[u8]) -> ObjectDigest {
    ObjectDigest(*blake3::hash(object).as_bytes())
}

const fn check_size(object: &[u8]) -> Result<(), EntryError> {
    if object.len() > MAX_ENTRY_BYTES {
        return Err(EntryError::TooLarge { found: object.len() as u64, most: MAX_ENTRY_BYTES as u64 });
    }
    Ok(())
}

/// The body, and the line of signature.
fn lines(object: &[u8]) -> Result<(&[u8], &str), EntryError> {
    let wrong = |what| EntryError::Lines { what };
    let object = object.strip_suffix(b"\n").ok_or_else(|| wrong("it does not end with a line feed"))?;
    let end = object.iter().rposition(|&byte| byte == b'\n').ok_or_else(|| wrong("it is one line"))?;
    let (body, signature) = (&object[..end], &object[end + 1..]);
    let signature = str::from_utf8(signature).map_err(|_| wrong("the signature is not text"))?;
    Ok((body, signature))
}

/// The key whose signature this says it is.
fn check_signature(body: &[u8], line: &str, trust: &Trust) -> Result<Option<KeyId>, EntryError> {
    let signature = parse_signature(line)?;
    let Trust::Keys(keys) = trust else { return Ok(signature.map(|(id, _)| id)) };
    let (id, signature) = signature.ok_or(EntryError::Unsigned)?;
    let (key, role) = keys.find(id).ok_or(EntryError::UnknownKey { key: id })?;
    if role != Role::Publisher {
        return Err(EntryError::WrongRole { key: id, found: role, expected: Role::Publisher });
    }
    if !key.has_signed(body, &signature) {
        return Err(EntryError::Forged { key: id });
    }
    Ok(Some(id))
}

/// The id of the key and the signature; `None` if the line says that there is none.
fn parse_signature(line: &str) -> Result<Option<(KeyId, [u8; 64])>, EntryError> {
    if line == UNSIGNED {
        return Ok(None);
    }
    let parsed = || {
        let (id, signature) = line.strip_prefix(ALGORITHM)?.strip_prefix(' ')?.split_once(' ')?;
        Some((KeyId(Hex::parse(id)?), Hex::parse(signature)?))
    };
    let what = "the signature is neither \"ed25519 <key id> <signature>\" nor \"unsigned\"";
    parsed().map(Some).ok_or(EntryError::Lines { what })
}
