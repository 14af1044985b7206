//! A model several times larger than the bound on what publishing and following take beside it.

use crate::fixture::{Home, Program, Rng, Run, text};
use crate::weights::Tensors;
use driftless_layout::{Model, ModelConfig, ServedDtypes};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// 212 MiB of BF16; the largest parameter has 32 MiB.
const CONFIG: &str = r#"{"model_type":"qwen3","vocab_size":16384,"hidden_size":1024,"num_hidden_layers":6,
"num_attention_heads":16,"num_key_value_heads":8,"head_dim":64,"intermediate_size":4096,"rms_norm_eps":1e-06,
"rope_theta":1000000.0,"tie_word_embeddings":true}"#;
const BLOB_BYTES: u64 = 1 << 20;
const MIB: u64 = 1 << 20;
/// What the program takes beside the weights, whatever the model: six blobs, none of which is smaller than the largest
/// section (4 Mi elements), and itself.
const BOUND: u64 = 80 * MIB;
/// Tells the allocator of glibc to give large blocks back to the system at once: what it keeps for itself depends on
/// which threads happened to free them.
const GIVE_BACK: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1048576");

/// Writes a checkpoint of pseudo-random weights, and gives its elements.
fn checkpoint(path: &Path) -> u64 {
    let config = ModelConfig::from_json(CONFIG).expect("a model");
    let model = Model::new(config, &ServedDtypes::default()).expect("a model");
    let (mut header, mut offset) = (serde_json::Map::new(), 0);
    for param in model.params() {
        let end = offset + 2 * param.elements();
        let about = serde_json::json!({
            "dtype": "BF16", "shape": param.shape.extents(), "data_offsets": [offset, end],
        });
        header.insert(param.fqn.to_string(), about);
        offset = end;
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    let mut file = BufWriter::new(File::create(path).expect("a file"));
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("room");
    file.write_all(&header).expect("room");
    let mut rng = Rng(1);
    let words = (0..1 << 19).flat_map(|_| [rng.next().to_le_bytes()[0], 0x3c]);
    let words: Vec<u8> = words.collect();
    let mut left = usize::try_from(offset).expect("a small model");
    while left > 0 {
        let piece = left.min(words.len());
        file.write_all(&words[..piece]).expect("room");
        left -= piece;
    }
    file.flush().expect("room");
    offset / 2
}

/// Whether a run kept to the bound beside its weights.
#[expect(clippy::print_stdout, reason = "the figures are shown with --nocapture")]
fn check(run: &Run, weights: u64) {
    let peak = run.report()["peak_rss_bytes"].as_u64().expect("Linux says it");
    println!("{} MiB beside {} MiB", peak.saturating_sub(weights) / MIB, weights / MIB);
    assert!(peak < weights + BOUND, "{peak} bytes, of them weights {weights}");
}

#[test]
fn publishing_and_following_take_a_bounded_memory_beside_the_model() {
    let home = Home::on_disk();
    let (file, config) = (home.path("model.safetensors"), home.path("config.json"));
    let elements = checkpoint(&file);
    fs::write(&config, CONFIG).expect("a file");
    // FP32 masters, or BF16 weights; the moments of a checkpoint are zeros that nobody touches.
    let (masters, weights) = (4 * elements, 2 * elements);
    assert!(weights > 2 * BOUND);
    let publish = Program::new("publish")
        .args(["--from-checkpoint", text(&file), "--model", text(&config), "--to", home.url()])
        .args(["--blob-bytes", &BLOB_BYTES.to_string(), "--json", "-"]);
    check(&publish.env(GIVE_BACK).succeed(), masters);
    let follow = home.follow("vllm:tp=2", "out").args(["--once", "--json", "-"]);
    check(&follow.env(GIVE_BACK).succeed(), weights);

    home.follow("hf", "whole").arg("--once").succeed();
    let rank = home.path("whole").join("tp0-pp0.safetensors");
    let (found, expected) = (Tensors::read(&rank), Tensors::read(&file));
    assert!(found.0.iter().all(|(name, tensor)| expected.0[name] == *tensor), "bit for bit");
}
