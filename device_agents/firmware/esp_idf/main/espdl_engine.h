/* esp-dl behind the core's engine interface. */
#pragma once

extern "C" {
#include "bt_engine.h"
}

bt_engine espdl_engine();
