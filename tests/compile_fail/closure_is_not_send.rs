//~ `Rc<i32>` cannot be shared between threads safely
//~ not `Send`: `Pipeline::call_local`
use std::{future::ready, rc::Rc};

fn main() {
    let held = Rc::new(7);
    let _ = steadfast::Pipeline::new().call(|| ready(Ok::<_, ()>(*held)));
}
