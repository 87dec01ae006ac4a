//! Futures that are dropped at each of their await points.
use steadfast::testing::drop_at_every_await;

use super::*;

// Guarantee: index_table 3.
#[test]
fn a_future_that_is_dropped_anywhere_leaves_stale_entries_at_most() {
    let world = World::new();
    let table = world.built();
    // Each request waits once, so that there is an await point behind each.
    world.script.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(1)));
    let one = Movie { isan: Some("1".to_owned()), ..movie("Alien", &["Weaver", "Hurt"]) };
    let other = Movie { isan: Some("2".to_owned()), ..movie("Alien", &["Weaver", "Holm"]) };
    let is_whole = || {
        let row = world.run(table.get(at("Alien"))).unwrap();
        let movie = row.map(|row| row.value);
        for actor in ["Weaver", "Hurt", "Holm"] {
            let wanted = movie.as_ref().is_some_and(|movie| movie.cast.iter().any(|of| of == actor));
            assert_eq!(world.titles(&table, actor).len(), usize::from(wanted), "{actor}");
        }
        if let Some(movie) = &movie {
            let isan = movie.isan.clone().unwrap();
            assert_eq!(world.run(table.lookup("by-isan", isan).rows()).unwrap().rows.len(), 1);
        }
        movie
    };
    let put = |movie: &Movie| world.put(&table, movie);
    put(&one);
    let puts = || table.put(at("Alien"), &other, Precondition::Any);
    let polls = drop_at_every_await(&world.time, puts, |_| {
        is_whole();
        put(&one);
        assert_eq!(is_whole().as_ref(), Some(&one));
    });
    assert!(polls > 4, "{polls}");
    let deletes = || table.delete(at("Alien"), Precondition::Any);
    let polls = drop_at_every_await(&world.time, deletes, |_| {
        is_whole();
        put(&one);
        assert_eq!(is_whole().as_ref(), Some(&one));
    });
    assert!(polls > 3, "{polls}");
    // Something to do for each repair.
    let spoil = || {
        world.write(&movie("Gravity", &["Bullock"]));
        let entry = "Clooney\u{1}\u{1}Gravity\u{1}\u{1}action\u{1}\u{1}Gravity";
        world
            .run(world.stores[1].put(
                Key::new("index/by-actor/03", entry),
                [1u8].to_vec().into(),
                Precondition::Any.into(),
            ))
            .unwrap();
    };
    spoil();
    let repairs = || table.repair("action");
    let polls = drop_at_every_await(&world.time, repairs, |_| {
        assert_eq!(is_whole().as_ref(), Some(&one));
        spoil();
    });
    assert!(polls > 30, "{polls}");
    let builds = || table.build_indexes(["action"]);
    assert!(drop_at_every_await(&world.time, builds, |_| drop(is_whole())) > 30);
    assert_eq!((world.titles(&table, "Bullock").len(), world.entries("by-actor")), (1, 3));

    assert!(drop_at_every_await(&world.time, || table.get(at("Alien")), |_| {}) >= 1);
    assert!(drop_at_every_await(&world.time, || table.lookup("by-actor", "Weaver").rows(), |_| {}) >= 2);
    let fresh = || {
        let table = world.table();
        async move { table.lookup("by-actor", "Weaver").keys().await }
    };
    assert!(drop_at_every_await(&world.time, fresh, |_| {}) >= 2);
    assert_eq!(is_whole(), Some(one));
}
