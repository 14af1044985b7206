//! A folder of recorded steps: the model's config, the policies and the trainer states, all checked before use.

use super::{BadInput, PolicyFile, TrainerState};
use driftless_layout::ParamMeta;
use driftless_types::{Dtype, Fqn};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const POLICY: &str = "policy-step-";
const TRAINER: &str = "trainer-step-";
const EXTENSION: &str = ".safetensors";

/// The files of a folder, opened and checked by their headers.
pub(crate) struct Folder {
    config_path: PathBuf,
    config: String,
    start_step: u64,
    start: PolicyFile,
    steps: Vec<RecordedStep>,
}

/// One recorded step, and what a rollout must hold after it if that was recorded too.
pub(crate) struct RecordedStep {
    /// The optimizer step, which is also the version it becomes.
    pub(crate) step: u64,
    /// Masters, moments and hyperparameters after it.
    pub(crate) state: TrainerState,
    /// The served weights after it.
    pub(crate) policy: Option<PolicyFile>,
}

impl Folder {
    /// Opens every file that a sync of the folder needs.
    pub(crate) fn open(dir: &Path) -> Result<Self, BadInput> {
        let config_path = dir.join(CONFIG);
        let config = fs::read_to_string(&config_path)
            .map_err(|error| BadInput::file(&config_path, error.to_string(), "the model's config"))?;
        let listing = Listing::read(dir)?;
        let (start_step, start) = listing.open_start(dir)?;
        let open = |(&step, path): (&u64, &PathBuf)| listing.open_step(step, path);
        let steps = listing.trainers.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { config_path, config, start_step, start, steps })
    }

    /// Where the config lies.
    pub(crate) fn config_path(&self) -> &Path {
        &self.config_path
    }

    /// The text of `config.json`.
    pub(crate) fn config(&self) -> &str {
        &self.config
    }

    /// The step of the policy that the rollouts start from.
    pub(crate) const fn start_step(&self) -> u64 {
        self.start_step
    }

    /// The policy that the rollouts start from.
    pub(crate) const fn start(&self) -> &PolicyFile {
        &self.start
    }

    /// The recorded steps, ascending.
    pub(crate) fn steps(&self) -> &[RecordedStep] {
        &self.steps
    }

    /// Checks that the starting policy holds the model's parameters, and says in which dtypes.
    pub(crate) fn served_dtypes(&self, params: &[ParamMeta]) -> Result<BTreeMap<Fqn, Dtype>, BadInput> {
        let dtypes = self.start.dtypes()?;
        self.start.check_shapes(params)?;
        Ok(dtypes)
    }

    /// Checks every file against the model's parameters in their served dtypes.
    pub(crate) fn check(&self, params: &[ParamMeta]) -> Result<(), BadInput> {
        self.start.check(params)?;
        for recorded in &self.steps {
            recorded.state.check(params)?;
            recorded.policy.as_ref().map_or(Ok(()), |policy| policy.check(params))?;
        }
        Ok(())
    }
}

/// The paths of a folder's files by their steps.
struct Listing {
    policies: BTreeMap<u64, PathBuf>,
    trainers: BTreeMap<u64, PathBuf>,
}

impl Listing {
    fn read(dir: &Path) -> Result<Self, BadInput> {
        let unreadable = |error: std::io::Error| BadInput::file(dir, error.to_string(), "a readable folder");
        let mut listing = Self { policies: BTreeMap::new(), trainers: BTreeMap::new() };
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            for (prefix, steps) in [(POLICY, &mut listing.policies), (TRAINER, &mut listing.trainers)] {
                let Some(digits) = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(EXTENSION))
                else {
                    continue;
                };
                let step = step_of(&path, digits)?;
                if let Some(twin) = steps.insert(step, path.clone()) {
                    let found = format!("step {step} twice, also in {}", twin.display());
                    return Err(BadInput::file(&path, found, "one file per step"));
                }
            }
        }
        Ok(listing)
    }

    /// The highest policy below the first trainer step.
    fn open_start(&self, dir: &Path) -> Result<(u64, PolicyFile), BadInput> {
        let Some(&first) = self.trainers.keys().next() else {
            return Err(BadInput::file(
                dir,
                "no trainer state",
                format!("at least one {TRAINER}NNNN{EXTENSION}"),
            ));
        };
        let Some((&step, path)) = self.policies.range(..first).next_back() else {
            let expected = format!("a {POLICY}NNNN{EXTENSION} below step {first}");
            return Err(BadInput::file(dir, "no policy to start from", expected)
                .fix("save the BF16 weights that the rollouts hold before the first recorded step"));
        };
        Ok((step, PolicyFile::open(path)?))
    }

    fn open_step(&self, step: u64, path: &Path) -> Result<RecordedStep, BadInput> {
        let state = TrainerState::open(path)?;
        let recorded = state.optimizer().step();
        if recorded != step {
            return Err(BadInput::file(
                path,
                format!("step {recorded}"),
                format!("step {step}, as the file's name says"),
            )
            .key("step"));
        }
        let policy = self.policies.get(&step).map(|path| PolicyFile::open(path)).transpose()?;
        Ok(RecordedStep { step, state, policy })
    }
}

fn step_of(path: &Path, digits: &str) -> Result<u64, BadInput> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let step = if is_number { digits.parse().ok() } else { None };
    step.ok_or_else(|| BadInput::file(path, format!("step `{digits}`"), "a step number in the file's name"))
}
