//~ future cannot be sent between threads safely
//~ has type `Rc<i32>` which is not `Send`
use std::{future::ready, rc::Rc};

fn main() {
    let _ = steadfast::Pipeline::new().call(|| async {
        let held = Rc::new(7);
        ready(()).await;
        Ok::<_, ()>(*held)
    });
}
