//! A disk that is full. It needs a small one of its own, so it runs where `STEADFAST_SERVERS_DIR` names one of less than 1 GiB:
//! `mount -t tmpfs -o size=260m,mode=777 tmpfs FOLDER`, and `cargo test --features postgres --test engines full_disk`.
use std::{path::Path, process::Command, time::Duration};

use steadfast::{
    backend::postgres::PostgresConfig,
    port::{Failure, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive},
};

use super::{super::*, *};

/// Returns the size of a disk and its free space, in bytes.
fn space(folder: &str) -> [u64; 2] {
    let df = Command::new("df").args(["-Pk", folder]).output().unwrap();
    let text = String::from_utf8(df.stdout).unwrap();
    let fields: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    [fields[1], fields[3]].map(|blocks| blocks.parse::<u64>().unwrap() << 10)
}

/// Room that is left for the data: less than that of the log, which would end the server.
const ROOM: u64 = 40 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_an_error_and_loses_nothing_that_was_accepted() {
    let Some(folder) = std::env::var("STEADFAST_SERVERS_DIR").ok().filter(|folder| space(folder)[0] < 1 << 30) else {
        return;
    };
    let server = server::Postgres::with(&[("max_wal_size", "32MB"), ("wal_recycle", "off")]);
    let queue = connect(&PostgresConfig::at(server.url())).await.queue("q").await.unwrap();
    let ballast = Path::new(&folder).join("ballast");
    std::fs::write(&ballast, vec![0; (space(&folder)[1] - ROOM) as usize]).unwrap();
    let (mut accepted, mut refused) = (Vec::new(), 0);
    while refused < 50 {
        let number = (accepted.len() + refused).to_string();
        let body = [number.as_bytes(), &[b' '; 100_000]].concat();
        match queue.send_one(Message::new(body)).await {
            Ok(_) => accepted.push(number),
            Err(error) => {
                says(&error, PortErrorKind::Full, &["free space"]);
                assert!(!error.may_have_been_applied(), "{error}");
                refused += 1;
            }
        }
    }
    std::fs::remove_file(&ballast).unwrap();
    queue.send_one(Message::new("after")).await.unwrap();
    let mut found = std::collections::HashSet::new();
    loop {
        let taken = queue.receive(Receive::new(1000, Duration::from_secs(600))).await.unwrap();
        if taken.is_empty() {
            break;
        }
        found.extend(taken.iter().map(|taken| String::from_utf8_lossy(&taken.body).trim().to_owned()));
    }
    let has_all = found.len() == accepted.len() + 1 && accepted.iter().all(|body| found.contains(body));
    assert!(has_all, "{}\n{} of {} came", server.log(), found.len(), accepted.len() + 1);
    println!("{} messages were accepted, and all came", accepted.len());
}
