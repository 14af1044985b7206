//! LY-3: the plan's digest, BLAKE3 over a canonical encoding of everything that both sides must agree on.
//!
//! Numbers are u64, little-endian; texts and lists carry their length first. In order: the domain; parameters
//! (name, dtype, shape); the trainer's text; senders (name, tensors with range and pieces, edges with fragments);
//! replicas (text, receivers with tensors and boxes). Every field of the plan is in it or follows from those
//! that are.

use super::fragment::{
    DestTensor, Edge, Fragment, Piece, ReceiverPlan, ReplicaPlan, SenderPlan, SourceRun, SourceTensor,
};
use crate::geometry::Box2;
use crate::model::ParamMeta;
use crate::trainer::TrainerLayout;
use driftless_types::{PlanDigest, ReceiverId, Shape};

const DOMAIN: &str = "driftless remap plan v1";
/// Small writes are gathered up to this many bytes before they are hashed.
const GATHERED_BYTES: usize = 1 << 16;

pub(super) fn of_plan(
    params: &[ParamMeta],
    trainer: &TrainerLayout,
    senders: &[SenderPlan],
    replicas: &[ReplicaPlan],
) -> PlanDigest {
    let mut writer = Writer::default();
    writer.text(DOMAIN);
    writer.list(params, Writer::param);
    writer.text(&trainer.to_string());
    writer.list(senders, Writer::sender);
    writer.list(replicas, Writer::replica);
    writer.finish()
}

#[derive(Default)]
struct Writer {
    hasher: blake3::Hasher,
    gathered: Vec<u8>,
}

impl Writer {
    fn finish(mut self) -> PlanDigest {
        self.hasher.update(&self.gathered);
        PlanDigest(*self.hasher.finalize().as_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.gathered.len() + bytes.len() > GATHERED_BYTES {
            self.hasher.update(&self.gathered);
            self.gathered.clear();
        }
        self.gathered.extend_from_slice(bytes);
    }

    fn number(&mut self, number: impl Into<u64>) {
        self.bytes(&number.into().to_le_bytes());
    }

    fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            self.number(number);
        }
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            write(self, item);
        }
    }

    fn shape(&mut self, shape: &Shape) {
        self.list(shape.extents(), |writer, &extent| writer.number(extent));
    }

    fn area(&mut self, area: Box2) {
        self.numbers([area.row, area.rows, area.col, area.cols]);
    }

    fn receiver_id(&mut self, id: ReceiverId) {
        self.number(id.replica.0);
        self.number(id.rank);
    }

    fn param(&mut self, meta: &ParamMeta) {
        self.text(meta.fqn.as_str());
        self.number(meta.dtype.code());
        self.shape(&meta.shape);
    }

    fn sender(&mut self, sender: &SenderPlan) {
        self.text(&sender.name);
        self.list(&sender.tensors, Self::source_tensor);
        self.list(&sender.edges, Self::edge);
    }

    fn source_tensor(&mut self, tensor: &SourceTensor) {
        self.text(&tensor.name);
        self.numbers([tensor.range.start, tensor.range.end]);
        self.list(&tensor.pieces, Self::piece);
    }

    fn piece(&mut self, piece: &Piece) {
        self.number(piece.src_offset);
        self.number(piece.param.0);
        self.area(piece.canonical);
        self.list(&piece.row_cuts, |writer, &cut| writer.number(cut));
        self.list(&piece.col_cuts, |writer, &cut| writer.number(cut));
        self.number(piece.first_cell);
    }

    fn edge(&mut self, edge: &Edge) {
        self.receiver_id(edge.receiver);
        self.list(&edge.fragments, Self::fragment);
    }

    fn fragment(&mut self, fragment: &Fragment) {
        self.numbers([fragment.index.into(), fragment.param.0.into()]);
        self.number(fragment.dtype.code());
        self.area(fragment.canonical);
        self.numbers([fragment.dst_tensor.into(), fragment.dst_offset, fragment.dst_row_stride]);
        self.list(&fragment.sources, Self::source_run);
        self.list(&fragment.cells, |writer, &cell| writer.number(cell));
        self.number(u8::from(fragment.first_in_replica));
    }

    fn source_run(&mut self, run: &SourceRun) {
        self.number(run.tensor);
        self.numbers([run.src_offset, run.src_row_stride, run.box_row, run.rows]);
    }

    fn replica(&mut self, replica: &ReplicaPlan) {
        self.text(&replica.layout.to_string());
        self.list(&replica.receivers, Self::receiver);
    }

    fn receiver(&mut self, receiver: &ReceiverPlan) {
        self.text(&receiver.name);
        self.list(&receiver.tensors, Self::dest_tensor);
    }

    fn dest_tensor(&mut self, tensor: &DestTensor) {
        self.text(&tensor.name);
        self.number(tensor.dtype.code());
        self.shape(&tensor.shape);
        self.list(&tensor.boxes, |writer, place| {
            writer.number(place.param.0);
            writer.area(place.canonical);
            writer.numbers([place.dst_offset, place.dst_row_stride]);
        });
    }
}

#[cfg(test)]
mod tests;
