//! Every field of a plan is in its digest: each is changed on its own.

use super::*;
use crate::{Model, ModelConfig, RemapPlan, ServedDtypes};
use driftless_types::{Dtype, Fqn, ParamId};

struct Parts {
    params: Vec<ParamMeta>,
    trainer: TrainerLayout,
    senders: Vec<SenderPlan>,
    replicas: Vec<ReplicaPlan>,
}

impl Parts {
    fn new() -> Self {
        let config = ModelConfig::from_json(
            r#"{"model_type": "qwen3", "vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8}"#,
        );
        let model = Model::new(config.unwrap(), &ServedDtypes::default()).unwrap();
        let trainer = "megatron:dp=3".parse().unwrap();
        let plan = RemapPlan::compile(&model, &trainer, &["vllm:tp=2".parse().unwrap()]).unwrap();
        let RemapPlan { params, trainer, senders, replicas, .. } = plan;
        Self { params, trainer, senders, replicas }
    }

    fn digest(&self) -> PlanDigest {
        of_plan(&self.params, &self.trainer, &self.senders, &self.replicas)
    }

    fn tensor(&mut self) -> &mut SourceTensor {
        let owned = |tensor: &&mut SourceTensor| !tensor.pieces.is_empty();
        self.senders.iter_mut().flat_map(|sender| &mut sender.tensors).find(owned).unwrap()
    }

    fn piece(&mut self) -> &mut Piece {
        &mut self.tensor().pieces[0]
    }

    fn fragment(&mut self) -> &mut Fragment {
        &mut self.senders[1].edges[0].fragments[0]
    }

    fn held(&mut self) -> &mut DestTensor {
        &mut self.replicas[0].receivers[1].tensors[0]
    }
}

#[test]
fn ly3_each_field_of_the_plan_is_in_its_digest() {
    let changes: [fn(&mut Parts); 37] = [
        |parts| parts.params[0].fqn = Fqn::from("other"),
        |parts| parts.params[0].dtype = Dtype::Fp32,
        |parts| parts.params[0].shape = Shape::new([1]),
        |parts| parts.trainer.router = Some(Dtype::Bf16),
        |parts| parts.senders.swap(0, 1),
        |parts| parts.senders[0].name.push('x'),
        |parts| parts.tensor().name.push('x'),
        |parts| parts.tensor().range.start += 1,
        |parts| parts.tensor().range.end += 1,
        |parts| parts.piece().src_offset += 1,
        |parts| parts.piece().param = ParamId(9),
        |parts| parts.piece().canonical.row += 1,
        |parts| parts.piece().canonical.cols += 1,
        |parts| parts.piece().row_cuts.push(1),
        |parts| parts.piece().col_cuts.push(1),
        |parts| parts.piece().first_cell += 1,
        |parts| parts.senders[1].edges[0].receiver.rank += 1,
        |parts| parts.fragment().index += 1,
        |parts| parts.fragment().param = ParamId(9),
        |parts| parts.fragment().dtype = Dtype::Fp32,
        |parts| parts.fragment().canonical.rows += 1,
        |parts| parts.fragment().dst_tensor += 1,
        |parts| parts.fragment().dst_offset += 1,
        |parts| parts.fragment().dst_row_stride += 1,
        |parts| parts.fragment().sources[0].src_offset += 1,
        |parts| parts.fragment().sources[0].src_row_stride += 1,
        |parts| parts.fragment().sources[0].rows += 1,
        |parts| parts.fragment().cells.push(0),
        |parts| parts.fragment().first_in_replica ^= true,
        |parts| parts.replicas[0].layout.router = Some(Dtype::Bf16),
        |parts| parts.replicas[0].receivers[1].name.push('x'),
        |parts| parts.held().name.push('x'),
        |parts| parts.held().shape = Shape::new([1]),
        |parts| parts.held().dtype = Dtype::Fp32,
        |parts| parts.held().boxes[0].canonical.col += 1,
        |parts| parts.held().boxes[0].dst_offset += 1,
        |parts| parts.held().boxes[0].dst_row_stride += 1,
    ];
    let plain = Parts::new().digest();
    assert_eq!(plain, Parts::new().digest());
    for (number, change) in changes.into_iter().enumerate() {
        let mut parts = Parts::new();
        change(&mut parts);
        assert_ne!(parts.digest(), plain, "change {number}");
    }
}
