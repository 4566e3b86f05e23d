#include "amos_emulation.h"
