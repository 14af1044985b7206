//! One request with a deadline, and repetitions of it with pauses between.

use crate::classify::classify;
use crate::error::StoreError;
use crate::options::StoreOptions;
use object_store::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::debug;

/// Sends requests.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) options: StoreOptions,
    /// The state of the draws for pauses.
    draws: AtomicU64,
}

impl Caller {
    pub(crate) const fn new(options: StoreOptions) -> Self {
        let draws = AtomicU64::new(options.jitter_seed);
        Self { options, draws }
    }

    /// One request; given up at the deadline, which leaves open whether the store still carries it out.
    pub(crate) async fn once<T>(
        &self,
        key: &Path,
        payload_bytes: u64,
        request: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T, StoreError> {
        let request = async { request.await.map_err(|error| self.classify(key, payload_bytes, error)) };
        self.within(key, payload_bytes, request).await
    }

    /// Part of a request that finds its own errors, given up at the deadline.
    pub(crate) async fn within<T>(
        &self,
        key: &Path,
        payload_bytes: u64,
        part: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let deadline = self.options.deadline_of(payload_bytes);
        let given_up = |_| Err(self.given_up(key, payload_bytes));
        tokio::time::timeout(deadline, part).await.unwrap_or_else(given_up)
    }

    /// What a request that met its deadline ends with.
    pub(crate) fn given_up(&self, key: &Path, payload_bytes: u64) -> StoreError {
        let deadline_ms = self.options.deadline_of(payload_bytes).as_millis();
        StoreError::Timeout { key: key.to_string(), deadline_ms }
    }

    /// What a store's error means.
    pub(crate) fn classify(&self, key: &Path, payload_bytes: u64, error: object_store::Error) -> StoreError {
        classify(key, error, self.options.deadline_of(payload_bytes))
    }

    /// An idempotent operation, repeated while its errors may pass and attempts are left.
    pub(crate) async fn repeated<T, Operation>(
        &self,
        operation: impl Fn() -> Operation + Send + Sync,
    ) -> Result<T, StoreError>
    where
        Operation: Future<Output = Result<T, StoreError>> + Send,
    {
        let mut failed = 0;
        loop {
            let error = match operation().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            failed += 1;
            if !error.is_passing() || failed >= self.options.attempts {
                return Err(error);
            }
            let pause = self.options.pause(failed, self.draw());
            debug!(%error, failed, pause_ms = pause.as_millis(), "a request failed and is sent again");
            tokio::time::sleep(pause).await;
        }
    }

    /// 64 bits that differ at each call (splitmix64).
    fn draw(&self) -> u64 {
        let state = self.draws.fetch_add(GOLDEN, Ordering::Relaxed).wrapping_add(GOLDEN);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The odd number next to 2^64 divided by the golden ratio: steps of it visit every state.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
