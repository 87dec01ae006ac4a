//! Files as platforms mount them.
use std::{fs, io::ErrorKind, os::unix::fs::symlink};

use steadfast::{config_store::watch_file, testing::drop_at_every_await};

use crate::world::{S, World};

// Guarantee: config_store 8.
#[test]
fn a_mounted_configuration_whose_link_is_swapped_is_seen() {
    // A volume of a config map: the file is a link to `..data/`, a link to a folder with the time in its name. A change
    // writes another folder, and renames a new link over `..data`. The file's own link never changes.
    let (world, folder) = (World::new(), tempfile::tempdir().unwrap());
    let mount = |moment: &str, text: &str| {
        let at = folder.path().join(moment);
        fs::create_dir(&at).unwrap();
        fs::write(at.join("service.toml"), text).unwrap();
        symlink(moment, folder.path().join("..data_tmp")).unwrap();
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
    };
    mount("..2026_01_01", "retries = 3");
    let path = folder.path().join("service.toml");
    symlink("..data/service.toml", &path).unwrap();
    let mut file = watch_file(&path, S(5)).clock(&world.clock);
    assert_eq!(world.run(S(0), file.changed()).unwrap().unwrap(), "retries = 3");
    assert!(world.run(S(100), file.changed()).is_none(), "nothing has changed");
    mount("..2026_01_02", "retries = 4");
    fs::remove_dir_all(folder.path().join("..2026_01_01")).unwrap();
    assert_eq!(world.run(S(5), file.changed()).unwrap().unwrap(), "retries = 4");
    // Another folder with the same text is no change.
    mount("..2026_01_03", "retries = 4");
    assert!(world.run(S(100), file.changed()).is_none());
}

// Guarantee: config_store 8.
#[test]
fn a_file_that_is_half_written_is_read_again_and_one_of_another_encoding_or_none_is_an_error_once() {
    let (world, folder) = (World::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("service.toml");
    let whole = "[retry]\nmax_attempts = 4\n";
    let mut file = watch_file(&path, S(5)).clock(&world.clock);
    let mut next = || world.run(S(6), file.changed());
    assert_eq!(next().unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(next().is_none(), "told once");
    fs::write(&path, &whole[..18]).unwrap();
    let half = next().unwrap().unwrap();
    assert!(toml::from_str::<toml::Table>(&half).is_err(), "{half}");
    fs::write(&path, whole).unwrap();
    let text = next().unwrap().unwrap();
    assert!(toml::from_str::<toml::Table>(&text).is_ok());
    // UTF-16, as some editors write it.
    let utf16: Vec<u8> = [0xfeff].into_iter().chain(whole.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    fs::write(&path, utf16).unwrap();
    assert_eq!(next().unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
    assert!(next().is_none());
    fs::remove_file(&path).unwrap();
    assert_eq!(next().unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(&path, whole).unwrap();
    assert_eq!(next().unwrap().unwrap(), whole);
}

#[test]
fn a_watch_without_an_interval_does_not_spin() {
    let (world, folder) = (World::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("a");
    fs::write(&path, "0").unwrap();
    let mut file = watch_file(&path, S(0)).clock(&world.clock);
    world.run(S(0), file.changed()).unwrap().unwrap();
    assert!(world.run(S(1), file.changed()).is_none());
}

// Guarantee: config_store 8.
#[test]
fn a_watch_dropped_at_every_await_loses_no_change() {
    let (world, folder) = (World::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("a");
    fs::write(&path, "0").unwrap();
    let mut file = watch_file(&path, S(5)).clock(&world.clock);
    world.run(S(0), file.changed()).unwrap().unwrap();
    fs::write(&path, "1").unwrap();
    let file = tokio::sync::Mutex::new(file);
    let seen = std::cell::RefCell::new(String::new());
    let polls = drop_at_every_await(
        &world.time,
        || async {
            let text = file.lock().await.changed().await.unwrap();
            *seen.borrow_mut() = text;
        },
        |_| {},
    );
    assert!(polls >= 1);
    assert_eq!(*seen.borrow(), "1");
}
