//! A stream on a local disk, read through a plain web server, where nothing can be listed or written.

use driftless_store::{ENTRY_BYTES_MAX, StoreError, StoreOptions, Stream, StreamUrl, create, open};
use driftless_types::Seq;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Serves the files of a folder, and answers 404 for all others and 405 to all but GET and HEAD.
async fn serve(folder: PathBuf, listener: TcpListener) -> io::Result<()> {
    loop {
        let (connection, _) = listener.accept().await?;
        let folder = folder.clone();
        tokio::spawn(async move { answer(&folder, connection).await });
    }
}

async fn answer(folder: &Path, mut connection: TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await?);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let file = std::fs::read(folder.join(path.trim_start_matches("/stream/")));
    let (status, body) = match (method, file) {
        ("GET" | "HEAD", Ok(body)) => ("200 OK", body),
        ("GET" | "HEAD", Err(_)) => ("404 Not Found", Vec::new()),
        _ => ("405 Method Not Allowed", Vec::new()),
    };
    let length = body.len();
    let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{modified}\r\nConnection: close\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    if method == "GET" {
        connection.write_all(&body).await?;
    }
    connection.shutdown().await
}

/// The stream as its writer sees it, and as a reader behind the web server does.
async fn both(folder: &Path) -> (Stream, Stream) {
    let options = StoreOptions::default();
    let writer: StreamUrl = format!("file://{}", folder.display()).parse().expect("an address");
    let writer = create(&writer, &options).expect("the folder is there");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(serve(folder.to_path_buf(), listener));
    let reader: StreamUrl = format!("http://{address}/stream").parse().expect("an address");
    (writer, open(&reader, &options).expect("a web client"))
}

#[tokio::test]
async fn places_are_asked_for_one_by_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (writer, reader) = both(folder.path()).await;
    assert_eq!(reader.tail(Seq(0)).await.expect("places are asked for"), None);
    for seq in (0..11).map(Seq) {
        writer.create_entry(seq, format!("entry {seq}").into()).await.expect("the place is free");
        assert_eq!(reader.tail(Seq(0)).await.expect("places are asked for"), Some(seq));
    }
    for hint in [4, 10, 99] {
        writer.write_head(Seq(hint)).await.expect("the hint is written");
        assert_eq!(reader.tail(Seq(0)).await.expect("places are asked for"), Some(Seq(10)), "hint {hint}");
    }
    assert_eq!(reader.read_entry(Seq(7), ENTRY_BYTES_MAX).await.expect("an entry is read"), "entry 7");
    let missing = reader.read_entry(Seq(11), ENTRY_BYTES_MAX).await;
    assert!(matches!(missing, Err(StoreError::Missing { .. })), "{missing:?}");
    let listed = reader.list_entries(Seq(0)).await;
    assert!(listed.is_err(), "a plain web server lists {listed:?}");
}

#[tokio::test]
async fn blobs_are_read_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (writer, reader) = both(folder.path()).await;
    let bytes = bytes::Bytes::from(vec![3; 2 << 20]);
    let blob = writer.put_blob(3, bytes.clone()).await.expect("a blob is put");
    assert!(reader.get_blob(3, &blob).await.expect("a blob is read") == bytes);
    let written = reader.create_entry(Seq(0), "x".into()).await;
    assert!(matches!(written, Err(StoreError::ReadOnly { source: None, .. })), "{written:?}");
    let deleted = reader.delete_blob(3, &blob.digest).await;
    assert!(matches!(deleted, Err(StoreError::ReadOnly { source: None, .. })), "{deleted:?}");
}
