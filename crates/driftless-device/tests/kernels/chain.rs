//! All kernels in a row, from the masters of a trained policy to the weights of a rollout: what a sync does.

use crate::abi::{
    Block16Args, CountArgs, GatherArgs, MarkArgs, PutArgs, RehashArgs, Run, ScatterArgs, ScatterResult,
};
use crate::boxes::area_of;
use crate::golden::{files, floats, step_of};
use crate::lists::{remap, runs_of};
use crate::pass::detect;
use crate::shim::{Grid, launch};
use crate::support::{RUN, State, inversion, param};
use driftless_device::{
    Bitset, ChangeSource, Changes, CpuDevice, DetectOptions, Device, Pending, PieceDiff, PieceRule,
};
use driftless_layout::{Box2, Fragment, ParamMeta, Piece, SourceRun, SourceTensor};
use driftless_numerics::{DigestKeys, DigestTable, Family, Rule};
use driftless_types::{Digest, Dtype, Fqn, ParamId};
use safetensors::SafeTensors;

/// One parameter of a policy, before and after a step.
struct Parameter {
    meta: ParamMeta,
    rule: Rule,
    state: State,
    before: Vec<u16>,
    after: Vec<u16>,
}

fn words(views: &SafeTensors<'_>, name: &str) -> Vec<u16> {
    let view = views.tensor(name).expect("a weight of the policy");
    view.data().as_chunks::<2>().0.iter().map(|&word| u16::from_le_bytes(word)).collect()
}

/// The parameters of a policy in step 8.
fn parameters(folder: &str) -> Vec<Parameter> {
    let read = |prefix: &str| std::fs::read(&files(folder, prefix)[0]).expect("a readable vector");
    let [before, after, trainer] = ["policy-step-0007", "policy-step-0008", "trainer-step-0008"].map(read);
    let [before, after, views] =
        [&before, &after, &trainer].map(|bytes| SafeTensors::deserialize(bytes).expect("a vector"));
    let (_, header) = SafeTensors::read_metadata(&trainer).expect("a vector");
    let metadata = header.metadata().as_ref().expect("metadata");
    let parameter = |(id, name): (u32, &str)| {
        let view = before.tensor(name).expect("a weight of the policy");
        let dtype = if view.dtype() == safetensors::Dtype::F32 { Dtype::Fp32 } else { Dtype::Bf16 };
        let [rows, cols] = match *view.shape() {
            [cols] => [1, cols as u64],
            [rows, cols] => [rows as u64, cols as u64],
            _ => panic!("{name} is a vector or a matrix"),
        };
        let mut step = step_of(metadata);
        if name.ends_with(&metadata["no_decay_suffix"]) {
            step.hyper.weight_decay = 0.0;
        }
        let read = |name: String| floats(&views, &name).expect("a tensor of the trainer");
        Parameter {
            meta: param(id, rows, cols, dtype),
            rule: Rule::new(&Fqn::from(name), Family::Torch, &step).expect("a usual step"),
            state: State {
                master: read(name.to_owned()),
                exp_avg: read(format!("{name}.exp_avg")),
                exp_avg_sq: read(format!("{name}.exp_avg_sq")),
            },
            before: words(&before, name),
            after: words(&after, name),
        }
    };
    let mut names = before.names();
    names.sort_unstable();
    (0..).zip(names).map(parameter).collect()
}

impl Parameter {
    /// The halves of its columns, as two ranks of a rollout hold them; a vector is held whole.
    fn fragments(&self) -> Vec<Fragment> {
        let (rows, cols) =
            (self.meta.shape.elements().expect("a countable shape") / self.meta.cols(), self.meta.cols());
        let width = if rows == 1 { cols } else { cols / 2 };
        let fragment = |index: u32| {
            let col = u64::from(index) * width;
            let run = SourceRun { tensor: 0, src_offset: col, src_row_stride: cols, box_row: 0, rows };
            Fragment {
                index,
                param: self.meta.id,
                dtype: self.meta.dtype,
                canonical: Box2::new(0, rows, col, width),
                dst_tensor: index,
                dst_offset: 0,
                dst_row_stride: width,
                sources: vec![run],
                cells: vec![index],
                first_in_replica: true,
            }
        };
        (0..(cols / width) as u32).map(fragment).collect()
    }

    /// It as the only piece of a sender's tensor, with a digest cell per fragment.
    fn tensor(&self) -> SourceTensor {
        let (elements, cols) = (self.meta.shape.elements().expect("a countable shape"), self.meta.cols());
        let rows = elements / cols;
        let canonical = Box2::new(0, rows, 0, cols);
        let col_cuts = if rows == 1 { vec![] } else { vec![cols / 2] };
        let piece = Piece {
            src_offset: 0,
            param: self.meta.id,
            canonical,
            row_cuts: vec![],
            col_cuts,
            first_cell: 0,
        };
        SourceTensor { name: "whole".into(), range: 0..elements, pieces: vec![piece] }
    }
}

/// The words of a fragment, out of those of its parameter.
fn part_of(words: &[u16], fragment: &Fragment, cols: u64) -> Vec<u16> {
    let each = fragment.dtype.words();
    let area = &fragment.canonical;
    let rows = words.chunks(cols as usize * each).skip(area.row as usize).take(area.rows as usize);
    let columns = area.col as usize * each..(area.col + area.cols) as usize * each;
    rows.flat_map(|row| row[columns.clone()].to_vec()).collect()
}

/// Positions and values through a `block16` body and back.
fn through_block16(grid: Grid, n: u64, positions: &mut [u32], values: &mut [u16]) {
    let nnz = positions.len() as u64;
    let mut body = vec![0_u32; (n.div_ceil(1 << 16) + 1 + nnz) as usize];
    let mut fault = 0;
    let mut args = Block16Args {
        body: body.as_mut_ptr().cast(),
        positions: positions.as_mut_ptr(),
        values: values.as_mut_ptr(),
        fault: &raw mut fault,
        n,
        nnz,
    };
    launch("driftless_block16_directory", grid, &args);
    launch("driftless_block16_encode", grid, &args);
    let (mut decoded, mut bits) = (vec![0; positions.len()], vec![0; values.len()]);
    (args.positions, args.values) = (decoded.as_mut_ptr(), bits.as_mut_ptr());
    launch("driftless_block16_decode", grid, &args);
    assert_eq!((fault, &decoded[..], &bits[..]), (0, &*positions, &*values));
}

/// What one rank of a rollout holds.
struct Held<'a> {
    grid: Grid,
    fragment: &'a Fragment,
    cols: u64,
    table: &'a DigestTable,
    words: Vec<u16>,
}

impl Held<'_> {
    fn digest(&self) -> Digest {
        let mut digest = [0; 4];
        let args = RehashArgs {
            words: self.words.as_ptr(),
            table: self.table,
            digest: digest.as_mut_ptr(),
            words_each: self.fragment.dtype.words() as u32,
            unused: 0,
            area: area_of(self.fragment, self.cols),
        };
        launch("driftless_rehash", self.grid, &args);
        Digest(digest)
    }

    /// Applies changes, or with no positions all words; gives the digest's change, and undoes if asked to.
    fn apply(&mut self, positions: Option<&[u32]>, values: &[u16], after: &[u16]) -> Digest {
        let before = self.words.clone();
        let (mut result, mut undo) = (ScatterResult::default(), vec![0; values.len()]);
        let args = ScatterArgs {
            words: self.words.as_mut_ptr(),
            positions: positions.map_or(std::ptr::null(), <[u32]>::as_ptr),
            values: values.as_ptr(),
            undo: undo.as_mut_ptr(),
            table: self.table,
            result: &raw mut result,
            count: positions.map_or_else(|| self.fragment.elements(), |positions| positions.len() as u64),
            words_each: self.fragment.dtype.words() as u32,
            unused: 0,
            area: area_of(self.fragment, self.cols),
        };
        if let Some(positions) = positions {
            launch("driftless_scatter_check", self.grid, &args);
            launch("driftless_peek", self.grid, &args);
            let read = CpuDevice::new().read_at((&before).into(), self.fragment, self.cols, positions);
            assert_eq!(read.as_ref(), Ok(&undo));
        }
        let sparse = ["driftless_scatter_check", "driftless_scatter", "driftless_undo"];
        let whole = ["driftless_scatter_all", "driftless_undo_all"];
        let kernels = if positions.is_some() { &sparse[..] } else { &whole[..] };
        let (undo, write) = kernels.split_last().expect("some kernels");
        // Written, undone, and written again.
        for _ in 0..2 {
            self.words.copy_from_slice(&before);
            result = ScatterResult::default();
            write.iter().for_each(|kernel| launch(kernel, self.grid, &args));
            assert_eq!(self.words, after);
            launch(undo, self.grid, &args);
            assert_eq!(self.words, before);
        }
        self.words.copy_from_slice(after);
        Digest(result.delta)
    }
}

fn gathered(grid: Grid, state: &State, runs: &[Run], fragment: &Fragment) -> Vec<u16> {
    let masters = [state.master.as_ptr()];
    let mut words = vec![0; fragment.elements() as usize * fragment.dtype.words()];
    let args = GatherArgs {
        masters: masters.as_ptr(),
        runs: runs.as_ptr(),
        words: words.as_mut_ptr(),
        count: fragment.elements(),
        run_count: runs.len() as u32,
        form: if fragment.dtype == Dtype::Fp32 { 2 } else { 0 },
    };
    launch("driftless_gather", grid, &args);
    words
}

/// Detects, remaps and scatters one parameter; gives how many changes there were.
fn sync(grid: Grid, parameter: &Parameter, metas: &[ParamMeta], keys: &DigestKeys) -> usize {
    let (tensor, table) = (parameter.tensor(), keys.table());
    let rules = [PieceRule::Rule(parameter.rule.clone())];
    let options = DetectOptions::default().with_classes();
    let found = detect(grid, &tensor, metas, inversion(&parameter.state, &rules), options, keys);
    let changes: &Changes = found.changes.on_host().expect("a list on the host");
    let (fragments, cols) = (parameter.fragments(), parameter.meta.cols());
    let runs: Vec<Run> = fragments.iter().flat_map(runs_of).collect();
    let count = changes.indices.len();
    let mut mapped = remap(grid, std::slice::from_ref(changes), &runs, count);
    for (index, fragment) in fragments.iter().enumerate() {
        let [first, end] = [index, index + 1].map(|run| mapped.starts[run] as usize);
        let (positions, values) = (&mut mapped.positions[first..end], &mut mapped.values[first..end]);
        let words = part_of(&parameter.before, fragment, cols);
        let mut held = Held { grid, fragment, cols, table: &table, words };
        let (before, after) = (held.digest(), part_of(&parameter.after, fragment, cols));
        assert_eq!(gathered(grid, &parameter.state, &runs[index..=index], fragment), after);
        let delta = if fragment.dtype == Dtype::Fp32 {
            held.apply(None, &after, &after)
        } else {
            through_block16(grid, fragment.elements(), positions, values);
            held.apply(Some(positions), values, &after)
        };
        // The receiver's digest, carried along and taken afresh, is the one of the sender's cell.
        assert_eq!((before + delta, held.digest()), (found.cells[index], found.cells[index]));
    }
    if parameter.meta.dtype == Dtype::Bf16 {
        let mut snapshot = parameter.before.clone();
        let (indices, values) = (changes.indices.as_ptr(), changes.values.as_ptr());
        let args = PutArgs { words: snapshot.as_mut_ptr(), indices, values, count: count as u64 };
        launch("driftless_put", grid, &args);
        assert_eq!(snapshot, parameter.after);
    }
    count
}

#[test]
fn a_trained_policy_arrives_bit_for_bit() {
    let keys = DigestKeys::new(RUN);
    for (folder, fewest) in [("nano-dense", 1000), ("nano-moe", 1000)] {
        let parameters = parameters(folder);
        let metas: Vec<ParamMeta> = parameters.iter().map(|parameter| parameter.meta.clone()).collect();
        let mut changes = 0;
        for (seed, parameter) in (0..).zip(&parameters) {
            changes += sync(Grid::new(128, seed), parameter, &metas, &keys);
            assert_eq!(parameter.meta.id, ParamId(seed as u32));
        }
        assert!(changes > fewest, "{folder}: {changes} changes");
    }
}

/// The elements of a parameter whose bits a step changed.
fn changed(parameter: &Parameter) -> Vec<u32> {
    let pairs = parameter.before.iter().zip(&parameter.after);
    (0..).zip(pairs).filter(|(_, (before, after))| before != after).map(|(index, _)| index).collect()
}

/// Where lists are made.
struct Scene<'a> {
    grid: Grid,
    tensor: SourceTensor,
    metas: &'a [ParamMeta],
    keys: &'a DigestKeys,
}

impl Scene<'_> {
    fn list(&self, source: ChangeSource<'_>, options: DetectOptions<'_>) -> Vec<u32> {
        let found = detect(self.grid, &self.tensor, self.metas, source, options, self.keys);
        found.changes.on_host().expect("a list on the host").indices.clone()
    }
}

#[test]
fn every_other_source_finds_what_changed_in_a_trained_policy() {
    let keys = DigestKeys::new(RUN);
    let parameters = parameters("nano-dense");
    let metas: Vec<ParamMeta> = parameters.iter().map(|parameter| parameter.meta.clone()).collect();
    for (seed, parameter) in (0..).zip(&parameters) {
        let (grid, wanted) = (Grid::new(64, seed), changed(parameter));
        let scene = Scene { grid, tensor: parameter.tensor(), metas: &metas, keys: &keys };
        let master = &parameter.state.master;
        let diffs = [PieceDiff::Compare];
        let (plain, model) = (DetectOptions::default, (&parameter.before).into());
        assert_eq!(
            scene.list(ChangeSource::PreCopy { master: master.into(), model, diffs: &diffs }, plain()),
            wanted
        );
        let mut marked = Bitset::new(master.len());
        let (bits, count) = (marked.words_mut().as_mut_ptr(), wanted.len() as u64);
        launch("driftless_mark", grid, &MarkArgs { bits, indices: wanted.as_ptr(), count });
        let (mut counted, words) = (0, 2 * marked.words().len() as u64);
        launch("driftless_count_bits", grid, &CountArgs { bits, count: &raw mut counted, words });
        assert_eq!((counted, marked.count()), (count, count));
        assert_eq!(
            scene.list(
                ChangeSource::InStep { master: master.into(), changed: (&marked).into(), diffs: &diffs },
                plain()
            ),
            wanted
        );
        let options = plain().with_pending(Pending::Drain((&mut marked).into()));
        assert_eq!(scene.list(inversion(&parameter.state, &[PieceRule::Untouched]), options), wanted);
        let options = plain().with_pending(Pending::Collect((&mut marked).into()));
        assert!(scene.list(inversion(&parameter.state, &[PieceRule::Dense]), options).is_empty());
        assert_eq!(marked.count(), master.len() as u64, "a piece that goes whole is pending whole");
    }
}
