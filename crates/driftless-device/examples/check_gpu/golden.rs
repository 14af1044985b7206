//! Recorded steps of PyTorch: the GPU judges every element as the CPU does.

use crate::Checked;
use crate::agree::inverted;
use crate::work::{COLS, State, Whole};
use driftless_device::PieceRule;
use driftless_device::cuda::CudaDevice;
use driftless_numerics::{Family, GroupStep, Hyperparameters, Rule};
use driftless_types::Fqn;
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Checks every file of a folder; gives how many there were.
pub(crate) fn check(gpu: &CudaDevice, folder: &Path) -> Checked<u32> {
    let mut files: Vec<_> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.sort();
    let mut vectors = 0;
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "safetensors")) {
        let bytes = fs::read(file)?;
        let (_, header) = SafeTensors::read_metadata(&bytes)?;
        let step = step_of(header.metadata().as_ref().ok_or("no metadata")?)?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let second = floats(&tensors, "max_exp_avg_sq").or_else(|_| floats(&tensors, "exp_avg_sq"))?;
        let state = State {
            master: floats(&tensors, "after")?,
            exp_avg: floats(&tensors, "exp_avg")?,
            exp_avg_sq: second,
        };
        let state = padded(state);
        let rows = state.master.len() as u64 / COLS;
        for family in Family::ALL {
            let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
            inverted(gpu, &Whole::new(0, rows), &state, &PieceRule::Rule(rule), family.cast())?;
        }
        vectors += 1;
    }
    Ok(vectors)
}

/// Whole rows: zeros behind the recorded elements.
fn padded(mut state: State) -> State {
    let elements = state.master.len().next_multiple_of(usize::try_from(COLS).unwrap_or(1));
    for slot in [&mut state.master, &mut state.exp_avg, &mut state.exp_avg_sq] {
        slot.resize(elements, 0.0);
    }
    state
}

fn step_of(metadata: &HashMap<String, String>) -> Checked<GroupStep> {
    let text = |key: &str| metadata.get(key).ok_or_else(|| format!("no {key} in the metadata"));
    let number = |key: &str| -> Checked<f64> { Ok(text(key)?.parse()?) };
    let hyper = Hyperparameters {
        lr: number("lr")?,
        beta1: number("beta1")?,
        beta2: number("beta2")?,
        eps: number("eps")?,
        weight_decay: number("weight_decay")?,
    };
    Ok(GroupStep::new(text("step")?.parse()?, hyper))
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Checked<Vec<f32>> {
    let tensor = tensors.tensor(name)?;
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect())
}
