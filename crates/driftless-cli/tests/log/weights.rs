//! What a reader's folder holds, compared with a policy word by word: by the plan's boxes, whatever way it came.

use driftless_layout::{DestBox, Model, ModelConfig, ReceiverPlan, RemapPlan, ServedDtypes, TrainerLayout};
use driftless_types::{Dtype, Fqn};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as StoredDtype, TensorView, serialize_to_file};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A safetensors file in memory.
#[derive(Clone)]
pub(crate) struct Tensors(pub(crate) BTreeMap<String, Tensor>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) dtype: StoredDtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensors {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("a readable file");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensor = |view: TensorView<'_>| Tensor {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Self(file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect())
    }

    /// Writes the file with the metadata of another.
    pub(crate) fn write_like(&self, like: &Path, path: &Path) {
        let bytes = fs::read(like).expect("a readable file");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
        let views = self.0.iter().map(|(name, tensor)| {
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            (name, view.expect("bytes that fit the shape"))
        });
        serialize_to_file(views, header.metadata().clone(), path).expect("a writable file");
    }

    fn dtypes(&self) -> BTreeMap<Fqn, Dtype> {
        let served = |dtype| if dtype == StoredDtype::BF16 { Dtype::Bf16 } else { Dtype::Fp32 };
        self.0.iter().map(|(name, tensor)| (Fqn::from(name.as_str()), served(tensor.dtype))).collect()
    }
}

/// Whether a reader's folder holds the policy as the layout cuts it; `config` is the model's.
pub(crate) fn compare(out: &Path, rollout: &str, config: &Path, policy: &Tensors) {
    let config = fs::read_to_string(config).expect("a config");
    let config = ModelConfig::from_json(&config).expect("a model");
    let hf: TrainerLayout = "hf".parse().expect("a layout");
    let served = ServedDtypes::new(policy.dtypes(), &hf, &[]).expect("dtypes");
    let model = Model::new(config, &served).expect("a model");
    let plan = RemapPlan::compile(&model, &hf, &[rollout.parse().expect("a layout")]).expect("a plan");
    for receiver in &plan.replicas()[0].receivers {
        compare_rank(out, &plan, receiver, policy);
    }
}

fn compare_rank(out: &Path, plan: &RemapPlan, receiver: &ReceiverPlan, policy: &Tensors) {
    let rank = receiver.name.rsplit('/').next().expect("a name");
    let file = Tensors::read(&out.join(format!("{rank}.safetensors")));
    for tensor in &receiver.tensors {
        let held = &file.0[&tensor.name];
        for part in &tensor.boxes {
            let param = plan.param(part.param);
            let element = 2 * param.dtype.words();
            let expected = &policy.0[param.fqn.as_str()];
            compare_box(held, expected, part, (param.cols(), element), &format!("{rank} {}", tensor.name));
        }
    }
}

fn compare_box(held: &Tensor, expected: &Tensor, part: &DestBox, (cols, element): (u64, usize), what: &str) {
    assert_eq!(held.dtype, expected.dtype, "{what}");
    let index = |i: u64| usize::try_from(i).expect("a small model") * element;
    let width = index(part.canonical.cols);
    for row in 0..part.canonical.rows {
        let found = index(part.dst_offset + row * part.dst_row_stride);
        let wanted = index((part.canonical.row + row) * cols + part.canonical.col);
        assert_eq!(held.bytes[found..found + width], expected.bytes[wanted..wanted + width], "{what}");
    }
}
