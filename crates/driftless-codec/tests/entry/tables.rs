//! The blobs of JSON that entries name.

use crate::kit::{blob, publication};
use driftless_codec::entry::{
    EntryError, Parameter, decode_parameters, decode_writers, encode_parameters, encode_writers,
};
use driftless_types::{Dtype, Shape, WriterManifest, Writers};

fn parameter(name: &str) -> Parameter {
    Parameter { name: name.into(), shape: Shape::new([2, 3]), dtype: Dtype::Bf16 }
}

#[test]
fn writers_come_back() {
    let Writers::Inline(writers) = publication().writers else { panic!("they are inline") };
    let bytes = encode_writers(&writers).unwrap();
    assert_eq!(decode_writers(&bytes, 2), Ok(writers));
    let error = decode_writers(&bytes, 3).unwrap_err();
    assert_eq!(error.to_string(), "the number of writers is 2, expected 3");
    assert_eq!(encode_writers(&[]).unwrap(), b"[]");
    let spaced = [b" ", &bytes[..]].concat();
    assert_eq!(decode_writers(&spaced, 2), Err(EntryError::NotCanonical { what: "table of writers" }));
    for length in 0..bytes.len() {
        assert!(decode_writers(&bytes[..length], 2).is_err());
    }
}

#[test]
fn writers_are_all_there_in_order() {
    let writer = |rank| WriterManifest { rank, blobs: vec![blob(1, 8)], nnz: 1 };
    assert!(encode_writers(&[writer(0), writer(1)]).is_ok());
    for ranks in [[1, 0], [0, 0], [0, 2], [1, 2]] {
        assert!(encode_writers(&ranks.map(writer)).is_err(), "{ranks:?}");
    }
}

#[test]
fn parameters_come_back() {
    let parameters = vec![
        Parameter { shape: Shape::new([]), ..parameter("a") },
        Parameter { dtype: Dtype::Fp32, ..parameter("b\"\u{e9}\u{1}") },
        parameter("c"),
    ];
    let bytes = encode_parameters(&parameters).unwrap();
    let first =
        r#"[{"dtype":"BF16","name":"a","shape":[]},{"dtype":"F32","name":"b\"é\u0001","shape":[2,3]},"#;
    assert!(bytes.starts_with(first.as_bytes()), "{}", String::from_utf8_lossy(&bytes));
    assert_eq!(decode_parameters(&bytes), Ok(parameters));
    for length in 0..bytes.len() {
        assert!(decode_parameters(&bytes[..length]).is_err());
    }
}

#[test]
fn parameters_are_bounded_and_in_order() {
    let refused = |parameters: &[Parameter]| encode_parameters(parameters).unwrap_err().to_string();
    assert!(refused(&[parameter("b"), parameter("a")]).starts_with("parameter 1 has a name of 1 bytes"));
    assert!(refused(&[parameter("a"), parameter("a")]).starts_with("parameter 1 has a name of 1 bytes"));
    assert!(refused(&[parameter("")]).starts_with("parameter 0 has a name of 0 bytes"));
    assert!(encode_parameters(&[parameter(&"n".repeat(512))]).is_ok());
    assert!(refused(&[parameter(&"n".repeat(513))]).starts_with("parameter 0 has a name of 513 bytes"));
    let wide = Parameter { shape: Shape::new([1; 9]), ..parameter("a") };
    assert_eq!(refused(&[wide]), "the number of axes of a parameter is 9, expected at most 8");
    let huge = Parameter { shape: Shape::new([u64::MAX, 2]), ..parameter("a") };
    assert!(refused(&[huge]).starts_with("the number of elements of a parameter is 18446744073709551615"));
}
