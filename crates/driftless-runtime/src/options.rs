//! Everything about a node that can be set, with its default.

use crate::Failpoints;
use driftless_device::{CpuDevice, Device};
use driftless_proto::{CoordinatorOptions, LeadOptions, Limits};
use driftless_types::RunId;
use std::sync::Arc;
use std::time::Duration;

/// How the senders know what changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detector {
    /// By the certified inversion of the optimizer's step: no memory of the old weights.
    #[default]
    Inversion,
    /// By comparison with a copy of the bits that were published last: 2 bytes per element, any optimizer.
    Snapshot,
    /// By comparison with the model's own BF16 weights, just before the trainer overwrites them: any optimizer. Each
    /// source must have its [`SourceBinding::model`](crate::binding::SourceBinding::model).
    PreCopy,
    /// By the masks that the optimizer writes in its step: any optimizer that does. Each source must have its
    /// [`SourceBinding::mask`](crate::binding::SourceBinding::mask).
    InStep,
}

/// Options of a node. Every wait, retry and buffer of the runtime has its bound here.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The training run: it seeds the digest's keys and fences everything that moves.
    pub run: RunId,
    /// How changes are detected.
    pub detector: Detector,
    /// The backend that detects and applies: all memory that is attached must be where it works.
    pub device: Arc<dyn Device>,
    /// Bounds of each exchange.
    pub limits: Limits,
    /// Deadlines of each replica's lead.
    pub lead: LeadOptions,
    /// Bounds of retrying a version.
    pub coordinator: CoordinatorOptions,
    /// After this time a version has ended for every replica, committed or not.
    pub version_deadline: Duration,
    /// A replica that is more versions behind than this is sent everything.
    pub max_lag_versions: u32,
    /// So large a share of a rank's elements may be remembered as changed; beyond it everything is sent.
    pub max_pending_density: f64,
    /// How often every rank says where it stands: what it said before may have been lost.
    pub keep_alive: Duration,
    /// How often one actor may be restarted within [`Self::restart_window`] before its node is unhealthy.
    pub restarts_max: u32,
    /// See [`Self::restarts_max`].
    pub restart_window: Duration,
    /// The pause before the first restart of an actor; it doubles with each further one in the window.
    pub restart_back_off: Duration,
    /// Places where tests make actors die.
    pub failpoints: Failpoints,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            run: RunId(uuid::Uuid::new_v4().into_bytes()),
            detector: Detector::Inversion,
            device: Arc::new(CpuDevice::new()),
            limits: Limits {
                staging_max_bytes: 16 << 30,
                round_deadline: Duration::from_secs(10),
                bandwidth_bytes_per_s: 100_000_000,
                window_bytes: 64 << 20,
            },
            lead: LeadOptions {
                staging_deadline: Duration::from_secs(60),
                pause_deadline: Duration::from_secs(10),
                apply_deadline: Duration::from_secs(60),
                taking_deadline: Duration::from_secs(240),
                repeat_after: Duration::from_millis(500),
            },
            coordinator: CoordinatorOptions {
                max_attempts: 8,
                first_back_off: Duration::from_millis(20),
                longest_back_off: Duration::from_secs(2),
                attempt_deadline: Duration::from_secs(300),
            },
            version_deadline: Duration::from_secs(300),
            max_lag_versions: 8,
            max_pending_density: 0.1,
            keep_alive: Duration::from_millis(500),
            restarts_max: 16,
            restart_window: Duration::from_secs(60),
            restart_back_off: Duration::from_millis(5),
            failpoints: Failpoints::default(),
        }
    }
}
