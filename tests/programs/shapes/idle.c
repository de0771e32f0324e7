/* Fills its memory, does nothing until stage 1, verifies. */
#include "cold.h"

int main(void) {
    fill();
    say("ready");
    await(1);
    return verdict(wrong());
}
