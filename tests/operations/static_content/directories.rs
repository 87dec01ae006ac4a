//! Releases from directories.
use std::{fs, os::unix::fs::symlink};

use steadfast::static_content::{Release, SiteError};

#[test]
fn a_directory_is_read_with_all_below_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    for path in ["index.html", "a/app.js", "a/b/c.css", ".well-known"] {
        fs::write(dir.path().join(path), path).unwrap();
    }
    // A link within the directory is followed.
    symlink("a/app.js", dir.path().join("same.js")).unwrap();
    symlink("b", dir.path().join("a/linked")).unwrap();
    let release = Release::from_dir(dir.path()).unwrap();
    let paths: Vec<_> = release.paths().collect();
    assert_eq!(paths, [".well-known", "a/app.js", "a/b/c.css", "a/linked/c.css", "index.html", "same.js"]);
}

#[test]
fn a_link_out_of_the_directory_and_one_back_into_itself_are_refused() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    let link = dir.path().join("a/link");
    for target in [outside.path().join("secret"), outside.path().to_owned(), dir.path().to_owned(), "missing".into()] {
        symlink(&target, &link).unwrap();
        let refused = Release::from_dir(dir.path()).unwrap_err();
        assert!(matches!(&refused, SiteError::File { path, .. } if path.ends_with("a/link")), "{refused}");
        fs::remove_file(&link).unwrap();
    }
    assert!(Release::from_dir(dir.path().join("nothing")).is_err());
}

#[test]
fn two_directories_that_link_to_each_other_are_refused_and_so_is_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for (at, to) in [("a", "../b"), ("b", "../a")] {
        fs::create_dir(dir.path().join(at)).unwrap();
        symlink(to, dir.path().join(at).join("link")).unwrap();
    }
    let refused = Release::from_dir(dir.path()).unwrap_err();
    assert!(matches!(&refused, SiteError::File { path, .. } if path.ends_with("link")), "{refused}");
    let dir = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let refused = Release::from_dir(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("no file"), "{refused}");
}
