//! How long a call may take, and how often it is repeated.

use driftless_codec::entry::MAX_BLOB_BYTES;
use std::time::Duration;
use uuid::Uuid;

/// The most bytes of a blob: each is one request, and each is held in memory whole.
pub const BLOB_BYTES_MAX: u64 = MAX_BLOB_BYTES;

/// How long a call may take, and how often it is repeated. A call with all its repetitions ends within
/// `attempts` times the sum of its deadline and `backoff_max`.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How long one request may take without its payload.
    pub deadline: Duration,
    /// What a payload adds to the deadline: its bytes divided by this.
    pub bytes_per_second_min: u64,
    /// How often an idempotent request is sent at most, the first time included. Entries are sent once.
    pub attempts: u32,
    /// The pause before the first repetition; each later one is twice as long.
    pub backoff_min: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// The most objects that a folder may list.
    pub listed_max: usize,
    /// What pauses are drawn from: between a half and the whole of the length above. Equal seeds pause equally.
    pub jitter_seed: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(20),
            bytes_per_second_min: 1 << 20,
            attempts: 5,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            listed_max: 1 << 20,
            jitter_seed: Uuid::new_v4().as_u64_pair().0,
        }
    }
}

impl StoreOptions {
    /// How long a request may take that moves so many bytes.
    #[must_use]
    pub fn deadline_of(&self, payload_bytes: u64) -> Duration {
        self.deadline + Duration::from_secs(payload_bytes / self.bytes_per_second_min.max(1))
    }

    /// The pause after so many attempts failed, given a draw of 64 random bits.
    pub(crate) fn pause(&self, failed: u32, draw: u64) -> Duration {
        let doublings = failed.saturating_sub(1).min(20);
        let longest = self.backoff_min.saturating_mul(1 << doublings).min(self.backoff_max);
        let half = longest / 2;
        let half_ns = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(draw.checked_rem(half_ns).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_keep_half_their_length() {
        let options = StoreOptions {
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_millis(500),
            ..StoreOptions::default()
        };
        for draw in [0, 1 << 40, u64::MAX] {
            for (failed, longest_ms) in [(1, 100), (2, 200), (3, 400), (4, 500), (9, 500), (u32::MAX, 500)] {
                let pause = options.pause(failed, draw);
                let longest = Duration::from_millis(longest_ms);
                assert!(longest / 2 <= pause && pause <= longest, "{failed}: {pause:?}");
            }
        }
    }

    #[test]
    fn a_payload_gives_a_request_more_time() {
        let options = StoreOptions::default();
        assert_eq!(options.deadline_of(0), Duration::from_secs(20));
        assert_eq!(options.deadline_of(BLOB_BYTES_MAX), Duration::from_secs(84));
        let unset = StoreOptions { bytes_per_second_min: 0, ..options };
        assert!(unset.deadline_of(1) > Duration::from_secs(20));
    }
}
