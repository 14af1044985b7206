//! Stores that go wrong on purpose, around any other: for tests of whoever uses one.
//!
//! [`Faulty`] fails single requests the way networks, services and disks do. Which fault hits which request is decided
//! by a function of the request, so that a test names operation, key and count, or draws from a [`seeded`] plan.
//! [`Unsynced`] loses what was not synced when its machine crashes.

mod errors;
mod unsynced;

pub use unsynced::{Syncing, Unsynced};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use errors::Refusals;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What is asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// An object is put, whatever the mode.
    Put,
    /// An object is read.
    Get,
    /// An object's length is read.
    Head,
    /// A folder is listed.
    List,
    /// An object is deleted.
    Delete,
}

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// It is carried out, but the answer is lost: the connection breaks.
    ReplyLost,
    /// Not carried out, and answered with 409.
    Conflict,
    /// Not carried out, and answered with 412.
    Precondition,
    /// Not carried out, and answered with 429.
    TooManyRequests,
    /// Not carried out, and answered with 503.
    Unavailable,
    /// Not carried out; the client gives up waiting.
    TimedOut,
    /// Not carried out, and never answered: only a deadline ends it.
    Hang,
    /// A read ends half-way, as if that were all.
    Truncated,
    /// A read has one bit flipped in the middle.
    FlippedBit,
    /// A listing lacks the key that was put last.
    StaleListing,
    /// A key is not there yet.
    NotVisible,
    /// Not carried out: the disk is full.
    DiskFull,
    /// Not carried out: the file system is read-only.
    ReadOnly,
    /// Not carried out, and answered with 403.
    PermissionDenied,
}

impl Fault {
    /// Whether an operation can go wrong in this way.
    #[must_use]
    pub const fn fits(self, operation: Operation) -> bool {
        match self {
            Self::TooManyRequests
            | Self::Unavailable
            | Self::TimedOut
            | Self::Hang
            | Self::PermissionDenied => true,
            Self::ReplyLost => !matches!(operation, Operation::List),
            Self::Conflict | Self::Precondition | Self::DiskFull => matches!(operation, Operation::Put),
            Self::ReadOnly => matches!(operation, Operation::Put | Operation::Delete),
            Self::Truncated | Self::FlippedBit => matches!(operation, Operation::Get),
            Self::NotVisible => matches!(operation, Operation::Get | Operation::Head),
            Self::StaleListing => matches!(operation, Operation::List),
        }
    }
}

/// A request, as a plan sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub operation: Operation,
    /// The key, or the folder of a listing.
    pub key: Path,
    /// How many requests came before it, of any kind.
    pub index: u64,
}

/// Decides what goes wrong with a request, if anything.
pub type FaultPlan = Box<dyn Fn(&Request) -> Option<Fault> + Send + Sync>;

/// A plan that strikes about one request in `one_in`, drawn from the seed and the request's index, with one of the
/// faults; a fault that does not fit the operation does nothing.
///
/// # Panics
/// If there are no faults to draw from.
pub fn seeded(
    seed: u64,
    one_in: u64,
    faults: Vec<Fault>,
) -> impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static {
    assert!(!faults.is_empty(), "a plan needs faults to draw from");
    move |request| {
        let draw = blake3::hash(&[seed.to_le_bytes(), request.index.to_le_bytes()].concat());
        let mut words = draw.as_bytes().chunks_exact(8).map(|word| {
            let word: [u8; 8] = word.try_into().expect("chunks have 8 bytes");
            u64::from_le_bytes(word)
        });
        let (hit, choice) = (words.next()?, words.next()?);
        let choice = usize::try_from(choice % faults.len() as u64).ok()?;
        (hit % one_in.max(1) == 0).then(|| faults[choice])
    }
}

/// A store around another one, with faults.
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    state: Arc<State>,
}

/// What requests of one store share.
struct State {
    plan: FaultPlan,
    refusals: Refusals,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    requests: u64,
    struck: Vec<(Request, Fault)>,
    put_last: Option<Path>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner.to_string()).finish_non_exhaustive()
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

impl Faulty {
    /// The store `inner`, whose requests go wrong as `plan` says.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        plan: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let state = State { plan: Box::new(plan), refusals: Refusals::new(), memory: Mutex::default() };
        Self { inner, state: Arc::new(state) }
    }

    /// The requests that went wrong so far, and how.
    #[must_use]
    pub fn struck(&self) -> Vec<(Request, Fault)> {
        self.state.memory().struck.clone()
    }

    /// How many requests came so far.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.state.memory().requests
    }
}

impl State {
    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request and asks the plan about it.
    fn fault(&self, operation: Operation, key: &Path) -> Option<Fault> {
        let index = {
            let mut memory = self.memory();
            memory.requests += 1;
            memory.requests - 1
        };
        let request = Request { operation, key: key.clone(), index };
        let fault = (self.plan)(&request).filter(|fault| fault.fits(operation))?;
        self.memory().struck.push((request, fault));
        Some(fault)
    }

    /// The error of a fault that keeps a request from being carried out; `Ok` for those that do not.
    async fn refuse(&self, fault: Option<Fault>, key: &Path) -> Result<()> {
        match fault {
            Some(fault) => self.refusals.refuse(fault, key).await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fault = self.state.fault(Operation::Put, key);
        self.state.refuse(fault, key).await?;
        let put = self.inner.put_opts(key, payload, options).await?;
        self.state.memory().put_last = Some(key.clone());
        if fault == Some(Fault::ReplyLost) {
            return Err(errors::broken());
        }
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head { Operation::Head } else { Operation::Get };
        let fault = self.state.fault(operation, key);
        self.state.refuse(fault, key).await?;
        let answer = self.inner.get_opts(key, options).await?;
        match fault {
            Some(Fault::ReplyLost) => Err(errors::broken()),
            Some(fault @ (Fault::Truncated | Fault::FlippedBit)) => damaged(answer, fault).await,
            _ => Ok(answer),
        }
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        let delete = move |key: Path| delete(Arc::clone(&inner), Arc::clone(&state), key);
        keys.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(prefix, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        after: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(prefix, self.inner.list_with_offset(prefix, after))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl Faulty {
    fn listed(
        &self,
        prefix: Option<&Path>,
        objects: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let folder = prefix.cloned().unwrap_or_default();
        let fault = self.state.fault(Operation::List, &folder);
        let hidden = match fault {
            Some(Fault::StaleListing) => self.state.memory().put_last.clone(),
            _ => None,
        };
        let state = Arc::clone(&self.state);
        // Nothing of the listing comes after an error, as from a service.
        let objects = async move { state.refuse(fault, &folder).await.map(|()| objects) };
        let objects = futures::stream::once(objects).try_flatten();
        objects
            .try_filter(move |object| std::future::ready(Some(&object.location) != hidden.as_ref()))
            .boxed()
    }
}

async fn delete(inner: Arc<dyn ObjectStore>, state: Arc<State>, key: Path) -> Result<Path> {
    let fault = state.fault(Operation::Delete, &key);
    state.refuse(fault, &key).await?;
    let deleted = object_store::ObjectStoreExt::delete(&inner, &key).await;
    if fault == Some(Fault::ReplyLost) {
        return Err(errors::broken());
    }
    deleted.map(|()| key)
}

/// An answer whose bytes are not what is stored, though its description says so.
async fn damaged(answer: GetResult, fault: Fault) -> Result<GetResult> {
    let GetResult { meta, range, attributes, extensions, .. } = &answer;
    let (meta, range, attributes, extensions) =
        (meta.clone(), range.clone(), attributes.clone(), extensions.clone());
    let mut bytes = BytesMut::from(answer.bytes().await?);
    let middle = bytes.len() / 2;
    match fault {
        Fault::Truncated => bytes.truncate(middle),
        _ => bytes.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1),
    }
    let bytes: Bytes = bytes.freeze();
    let payload = GetResultPayload::Stream(futures::stream::once(async move { Ok(bytes) }).boxed());
    Ok(GetResult { payload, meta, range, attributes, extensions })
}
