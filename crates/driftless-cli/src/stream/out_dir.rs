//! The folder of `driftless follow`: one safetensors file per rank, and the reader's state.
//!
//! LG-6: `state.json` says that the weights are about to change before the first file does; each file is replaced as a
//! whole; `state.json` says which version they are after the last. A reader that died in between finds a mix of two
//! versions and the name of the entry that it was writing.

use super::header::{Row, header, write_words};
use crate::failure::Failure;
use crate::files::{BadInput, TensorFile, stored};
use driftless::log::{Keep, KeepError, Memory, StateFile, remove_unfinished, replace};
use driftless::{Buffer, Version};
use driftless_layout::{DestTensor, ReceiverPlan, ReplicaPlan};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const STATE: &str = "state.json";
const LOCK: &str = ".lock";

/// The folder, the weights in memory, and where each rank's are kept.
#[derive(Debug)]
pub(crate) struct OutDir {
    state: StateFile,
    ranks: Vec<Rank>,
    /// Held for as long as this process follows into the folder.
    _lock: File,
}

#[derive(Debug)]
struct Rank {
    path: PathBuf,
    tensors: Vec<DestTensor>,
    live: Vec<Buffer<u16>>,
}

impl OutDir {
    /// Opens the folder, makes it if it is not there, and keeps others out.
    pub(crate) fn open(
        folder: &Path,
        replica: &ReplicaPlan,
        live: &[Vec<Buffer<u16>>],
    ) -> Result<Self, Failure> {
        let failed = |source: io::Error| Failure::Write { path: folder.display().to_string(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = File::create(folder.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|_| {
            Failure::Usage(format!("{}: another process follows into this folder", folder.display()))
        })?;
        remove_unfinished(folder).map_err(|error| Failure::Usage(error.to_string()))?;
        let rank = |(plan, live): (&ReceiverPlan, &Vec<Buffer<u16>>)| Rank {
            path: folder.join(format!("{}.safetensors", rank_name(plan))),
            tensors: plan.tensors.clone(),
            live: live.clone(),
        };
        let ranks = replica.receivers.iter().zip(live).map(rank).collect();
        Ok(Self { state: StateFile::new(folder.join(STATE)), ranks, _lock: lock })
    }

    /// What the reader was doing when it ended; weights are read from the files if it had any.
    pub(crate) fn load_weights(&self) -> Result<Memory, Failure> {
        let memory = self.state.load().map_err(|error| Failure::Usage(error.to_string()))?;
        if memory.cursor.is_some_and(|cursor| cursor.held.is_some()) {
            self.ranks.iter().try_for_each(Rank::load)?;
        }
        Ok(memory)
    }
}

/// `rollout0/tp0-pp0` as `tp0-pp0`: a file of the rank's own.
fn rank_name(plan: &ReceiverPlan) -> &str {
    plan.name.rsplit('/').next().unwrap_or(&plan.name)
}

impl Keep for OutDir {
    fn load(&self) -> Result<Memory, KeepError> {
        self.state.load()
    }

    fn save(&self, memory: &Memory) -> Result<(), KeepError> {
        self.state.save(memory)
    }

    fn weights(&self, version: Version) -> Result<(), KeepError> {
        self.ranks.iter().try_for_each(|rank| rank.write(version))
    }
}

impl Rank {
    fn load(&self) -> Result<(), Failure> {
        let file = TensorFile::open(&self.path)?;
        for (tensor, live) in self.tensors.iter().zip(&self.live) {
            file.expect(&tensor.name, stored(tensor.dtype), &tensor.shape)?;
            let words = file.words(&tensor.name)?;
            live.write(&words).map_err(|error| {
                BadInput::file(&self.path, error.to_string(), "as many values as the layout has")
                    .tensor(&tensor.name)
            })?;
        }
        Ok(())
    }

    /// The rank's file, tensor by tensor: no copy of the weights is made.
    fn write(&self, version: Version) -> Result<(), KeepError> {
        let header = self.header(version);
        replace(&self.path, |file| {
            file.write_all(&header)?;
            self.live.iter().try_for_each(|live| write_buffer(live, file))
        })
    }

    fn header(&self, version: Version) -> Vec<u8> {
        let rows = self.tensors.iter().zip(&self.live).map(|(tensor, live)| Row {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            words: live.len(),
        });
        header(rows, &serde_json::json!({ "format": "pt", "version": version.0.to_string() }))
    }
}

fn write_buffer(live: &Buffer<u16>, file: &mut dyn Write) -> io::Result<()> {
    write_words(&live.view().map_err(io::Error::other)?, file)
}
