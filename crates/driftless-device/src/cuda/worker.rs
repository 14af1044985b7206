//! The thread of a GPU.
//!
//! - **GT-1 (one thread).** Context, streams and modules of a GPU are touched by its own thread alone; callers hand it
//!   closures through a queue of at most [`QUEUED_JOBS_MAX`], and wait for the answer.
//! - **GT-2 (broken once).** After an error that breaks the context every later call is that error, at once.
#![expect(unsafe_code, reason = "closures borrow from the caller, who waits for them")]

use super::CudaOptions;
use super::abi::Address;
use super::gpu::Gpu;
use super::memory::{Account, Trash};
use crate::DeviceError;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Callers that wait for a GPU at once, before the next one waits for its place in the queue.
const QUEUED_JOBS_MAX: usize = 64;

type Job = Box<dyn FnOnce(&mut Gpu) + Send>;

/// A handle to the thread of a GPU: cheap to share, safe from any thread.
pub(super) struct Worker {
    name: Arc<str>,
    jobs: SyncSender<Job>,
    /// Threads of a block.
    pub(super) threads: u32,
    pub(super) account: Arc<Account>,
    pub(super) trash: Arc<Trash>,
}

impl Worker {
    /// Starts the thread, which opens the GPU.
    pub(super) fn start(options: CudaOptions) -> Result<Arc<Self>, DeviceError> {
        let name: Arc<str> = format!("cuda:{}", options.ordinal).into();
        let (account, trash) = (Arc::<Account>::default(), Arc::<Trash>::default());
        let (jobs, queue) = sync_channel(QUEUED_JOBS_MAX);
        let (opened, outcome) = sync_channel(1);
        let (thread_name, thread_account, thread_trash) =
            (Arc::clone(&name), Arc::clone(&account), Arc::clone(&trash));
        let body = move || {
            let open = || Gpu::open(&options, thread_name, thread_account, thread_trash);
            match catch_unwind(AssertUnwindSafe(open)) {
                Ok(Ok(gpu)) => {
                    let _ = opened.send(Ok(gpu.threads()));
                    serve(gpu, &queue);
                }
                Ok(Err(error)) => drop(opened.send(Err(error))),
                Err(_) => {} // `opened` is dropped: the caller hears that
            }
        };
        let spawned = thread::Builder::new().name(name.to_string()).spawn(body);
        spawned.map_err(|error| failed(&name, "starting its thread", &error.to_string()))?;
        let missing = |_| Err(failed(&name, "opening it", "a function of the driver is missing"));
        let threads = outcome.recv().unwrap_or_else(missing)?;
        Ok(Arc::new(Self { name, jobs, threads, account, trash }))
    }

    /// The device, such as `cuda:0`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on the GPU's thread and waits for it.
    pub(super) fn run<R: Send>(
        &self,
        work: impl FnOnce(&mut Gpu) -> Result<R, DeviceError> + Send,
    ) -> Result<R, DeviceError> {
        let (answer, outcome) = sync_channel(1);
        let job: Box<dyn FnOnce(&mut Gpu) + Send + '_> = Box::new(move |gpu| {
            let _ = answer.send(gpu.attempt(work));
        });
        // SAFETY: whatever the closure borrows lives until it is dropped. It is dropped before this function returns:
        // after it has run, as `recv` returns once `answer` was used or dropped and `work` was consumed before that;
        // or with the queue, which drops `answer` too; or in the error of `send`.
        let job: Job = unsafe { mem::transmute::<Box<dyn FnOnce(&mut Gpu) + Send + '_>, Job>(job) };
        let gone = || failed(&self.name, "reaching its thread", "it has ended");
        self.jobs.send(job).map_err(|_| gone())?;
        outcome.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Memory that nobody holds any more: the GPU's thread frees it soon, also if nobody calls again.
    pub(super) fn give_back(&self, address: Address, bytes: usize) {
        if self.trash.put(address, bytes) {
            // It frees after every job: one that does nothing, or any of those that fill the queue.
            let _ = self.jobs.try_send(Box::new(|_| {}));
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Worker").field(&self.name).finish()
    }
}

/// GT-1: one job after the other; ends when the last handle is gone.
fn serve(mut gpu: Gpu, queue: &Receiver<Job>) {
    for job in queue {
        job(&mut gpu);
        gpu.sweep();
    }
}

fn failed(device: &str, doing: &'static str, cause: &str) -> DeviceError {
    DeviceError::Lost { device: device.to_owned(), doing, cause: cause.to_owned() }
}
