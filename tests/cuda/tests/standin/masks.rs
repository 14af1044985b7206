//! An optimizer's marks in memory of a device.

use crate::support::{RUN, masters, params, tensor};
use crate::twins::{RUNNING, lend, on_device};
use anyhow::{Result, ensure};
use driftless_cuda_tests::{gpu, on_standin};
use driftless_device::{
    Bitset, ChangeSource, CpuDevice, DetectOptions, Device, DeviceError, PieceDiff, StepMask,
};
use driftless_numerics::DigestKeys;

#[test]
fn a_mask_is_read_where_it_is_and_nowhere_else() -> Result<()> {
    on_standin("masks::a_mask_is_read_where_it_is_and_nowhere_else", &[], || {
        let (gpu, keys, state) = (gpu()?, DigestKeys::new(RUN), masters(&tensor()));
        let (elements, diffs) = (state.master.len(), [PieceDiff::Compare; 7]);
        let mask = StepMask::on(&gpu, elements)?;
        ensure!(mask.host().is_none() && mask.len() == elements);
        let mut marked = Bitset::new(elements);
        // The first lies in no piece.
        marked.insert_all(&[1, 64, 4000]);
        mask.mark(&marked)?;
        marked.clear();
        marked.insert(4001);
        // What was marked stays marked.
        mask.mark(&marked)?;
        ensure!(mask.mark(&Bitset::new(elements - 1)).is_err());
        let lent = mask.lend();
        let changed = lent.bits();
        let master = on_device(&gpu, &state.master)?;
        let (tensor, params, options) = (tensor(), params(), DetectOptions::default);
        let source = ChangeSource::InStep { master: lend(&master), changed, diffs: &diffs };
        let found = gpu.detect(&tensor, &params, source, options(), &keys, &RUNNING)?.changes.to_host()?;
        ensure!(found.indices == [64, 4000, 4001], "{:?}", found.indices);
        let source = ChangeSource::InStep { master: (&state.master).into(), changed, diffs: &diffs };
        let refused = CpuDevice::new().detect(&tensor, &params, source, options(), &keys, &RUNNING);
        ensure!(matches!(refused, Err(DeviceError::Place { .. })), "{refused:?}");
        let short = StepMask::on(&gpu, elements - 64)?;
        let lent = short.lend();
        let source = ChangeSource::InStep { master: lend(&master), changed: lent.bits(), diffs: &diffs };
        let refused = gpu.detect(&tensor, &params, source, options(), &keys, &RUNNING);
        ensure!(matches!(refused, Err(DeviceError::Length { what: "changed", .. })), "{refused:?}");
        ensure!(StepMask::over(gpu.uninitialized(3)?, 300).is_err(), "five words");
        Ok(())
    })
}
