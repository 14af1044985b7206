//! Streams on a local disk.

use driftless_store::{ENTRY_BYTES_MAX, StoreError, StoreOptions, Stream, StreamUrl, create, open};
use driftless_types::Seq;
use std::path::Path;

fn url(folder: &Path) -> StreamUrl {
    format!("file://{}", folder.display()).parse().expect("an address")
}

fn made(folder: &Path) -> Stream {
    create(&url(folder), &StoreOptions::default()).expect("the folder is made")
}

#[tokio::test]
async fn a_missing_folder_is_no_empty_stream() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("slip");
    let refused = open(&url(&missing), &StoreOptions::default());
    let text = refused.expect_err("there is no such folder").to_string();
    assert!(text.contains("slip, which does not exist"), "{text}");
    assert!(!missing.exists(), "opening makes nothing");
    let file = folder.path().join("file");
    std::fs::write(&file, "x").expect("a file is written");
    assert!(create(&url(&file), &StoreOptions::default()).is_err(), "a file is no folder");
}

#[tokio::test]
async fn a_stream_is_found_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().join("runs/7");
    let stream = made(&place);
    let blob = stream.put_blob(2, "weights".into()).await.expect("a blob is put");
    stream.create_entry(Seq(0), "entry".into()).await.expect("the place is free");

    let again = open(&url(&place), &StoreOptions::default()).expect("the folder is there");
    assert_eq!(again.tail(Seq(0)).await.expect("the log is listed"), Some(Seq(0)));
    assert_eq!(again.read_entry(Seq(0), ENTRY_BYTES_MAX).await.expect("an entry is read"), "entry");
    assert_eq!(again.get_blob(2, &blob).await.expect("a blob is read"), "weights");
    let key = place.join(format!("blob/{:020}/{}", 2, blob.digest));
    assert_eq!(std::fs::read(key).expect("the blob's file"), b"weights");
}

/// What object_store syncs is its own to test; that it is told to is ours.
#[tokio::test]
async fn lg3_fsync_is_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shown = format!("{:?}", made(folder.path()).object_store());
    assert!(shown.contains("fsync: true"), "{shown}");
}

/// A process that died during a put leaves a staged file, which is no entry; neither is what somebody else put there.
#[tokio::test]
async fn what_a_dead_process_left_is_no_entry() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stream = made(folder.path());
    stream.create_entry(Seq(0), "entry".into()).await.expect("the place is free");
    let log = folder.path().join("log");
    let names = ["00000000000000000001#1", ".nfs0001", "1", "00000000000000000001.tmp", "..."];
    for name in names {
        std::fs::write(log.join(name), "left").expect("a file is written");
    }
    std::fs::create_dir(log.join(format!("{:020}", 5))).expect("a folder is made");
    assert_eq!(stream.list_entries(Seq(0)).await.expect("the log is listed"), [Seq(0)]);
    assert_eq!(stream.tail(Seq(0)).await.expect("the log is listed"), Some(Seq(0)));
    stream.create_entry(Seq(1), "next".into()).await.expect("a staged file takes no place");
    let beside = stream.create_entry(Seq(5), "x".into()).await;
    assert!(beside.is_err(), "a folder takes the place");
}

/// A collector that took over removes what older epochs left half-written, and nothing else.
#[tokio::test]
async fn lg9_staged_blobs_of_older_epochs_are_deleted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stream = made(folder.path());
    assert_eq!(stream.delete_staged(9).await.expect("there is no folder yet"), 0);
    let blobs = [3, 4].map(|epoch| (epoch, format!("weights of {epoch}")));
    let mut staged = Vec::new();
    for (epoch, text) in &blobs {
        let blob = stream.put_blob(*epoch, text.clone().into()).await.expect("a blob is put");
        let left = folder.path().join(format!("blob/{epoch:020}/{}#1", blob.digest));
        std::fs::write(&left, "half").expect("a file is written");
        staged.push(left);
    }
    assert_eq!(stream.delete_staged(4).await.expect("the folder is read"), 1);
    assert_eq!([staged[0].exists(), staged[1].exists()], [false, true]);
    assert_eq!(stream.list_blobs().await.expect("a listing").len(), 2);
}

/// A file where a folder should be is an error, and not an empty log.
#[tokio::test]
async fn a_file_in_the_way_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stream = made(folder.path());
    std::fs::write(folder.path().join("log"), "in the way").expect("a file is written");
    let created = stream.create_entry(Seq(0), "x".into()).await;
    assert!(matches!(created, Err(StoreError::Other { .. })), "{created:?}");
}

/// Two programs on one folder: the same rules as in a bucket.
#[tokio::test(flavor = "multi_thread")]
async fn lg1_two_openers_race_for_places() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let openers = [made(folder.path()), made(folder.path())];
    for seq in (0..50).map(Seq) {
        let [one, other] = [0_u8, 1].map(|at| {
            let stream = openers[usize::from(at)].clone();
            tokio::spawn(async move { stream.create_entry(seq, vec![at; 10].into()).await })
        });
        let won = [one.await.expect("it ends").is_ok(), other.await.expect("it ends").is_ok()];
        assert!(won[0] ^ won[1], "{seq}: {won:?}");
        let found = openers[0].read_entry(seq, ENTRY_BYTES_MAX).await.expect("an entry is read");
        assert_eq!(found[0], u8::from(won[1]));
    }
}
