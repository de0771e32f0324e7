//! The clock that annexd had: a hand in address order, and heat by laps between leaving and coming
//! back.

use crate::policy::annexd::{Chooser, MOST_SPANS, Pages, Place};

const HOTTEST: u8 = 3;
const LAPS: u8 = 16;
/// A span goes on over so many evicted pages.
const WIDEST_GAP: u32 = 512;

pub struct Clock {
    nibbles: Vec<u8>,
    hand: usize,
    lap: u8,
}

impl Clock {
    pub fn new(end: u32) -> Clock {
        Clock { nibbles: vec![0; end as usize], hand: 0, lap: 0 }
    }
}

impl Chooser for Clock {
    fn is_new(&mut self, page: u32) {
        self.nibbles[page as usize] = 0;
    }

    fn comes_back(&mut self, page: u32, alone: bool) {
        let nibble = &mut self.nibbles[page as usize];
        let away = self.lap.wrapping_sub(*nibble) % LAPS;
        *nibble = match away {
            0 if alone => HOTTEST,
            1 if alone => 2,
            2..=4 if alone => 1,
            _ => 0,
        };
    }

    fn is_gone(&mut self, page: u32, _was_local: bool) {
        self.nibbles[page as usize] = 0;
    }

    fn batch(&mut self, pages: &mut Pages, want: usize) -> Vec<u32> {
        let mut victims: Vec<u32> = Vec::new();
        let (mut spans, mut laps) = (0, 0);
        while laps <= u32::from(HOTTEST) + 1 && victims.len() < want {
            if self.hand >= pages.places.len() {
                (self.hand, self.lap, laps) = (0, (self.lap + 1) % LAPS, laps + 1);
                if !victims.is_empty() {
                    break;
                }
                continue;
            }
            let page = self.hand;
            if pages.places[page] == Place::Local {
                pages.scanned += 1;
                if self.nibbles[page] > 0 {
                    self.nibbles[page] -= 1;
                } else {
                    let bridged = victims.last().is_some_and(|last| {
                        let mut between = pages.places[*last as usize + 1..page].iter();
                        page as u32 - last <= WIDEST_GAP && between.all(|place| *place == Place::Evicted)
                    });
                    if !bridged && spans == MOST_SPANS {
                        break;
                    }
                    spans += usize::from(!bridged);
                    victims.push(page as u32);
                }
            }
            self.hand += 1;
        }
        victims
    }

    fn have_left(&mut self, left: &[u32]) {
        left.iter().for_each(|page| self.nibbles[*page as usize] = self.lap);
    }
}
